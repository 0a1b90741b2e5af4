"""A server that keeps files, over the model of the other tests."""

import pytest

from serving import running


@pytest.fixture
def server(llm, tmp_path):
    with running(llm, files=tmp_path / "files") as server:
        yield server
