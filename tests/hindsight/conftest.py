"""A model whose answers are recorded, shared by the tests of one worker."""

import pytest

from foreword import LLM


@pytest.fixture(scope="session")
def llm() -> LLM:
    return LLM(nodes=4)
