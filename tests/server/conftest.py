"""Clients of the server that the tests of one worker share, and other servers."""

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from functools import partial

import openai
import pytest

from foreword import LLM
from serving import Running, running


@pytest.fixture(scope="session")
def client(server: Running) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(
        base_url=f"{server.url}/v1", api_key="none", max_retries=0
    ) as client:
        yield client


@pytest.fixture
def serving(llm: LLM) -> Callable[..., AbstractContextManager[Running]]:
    """Return a function that starts a server over the same model, in other settings."""
    return partial(running, llm)
