"""A small checkpoint for the tests that write and read files of other engines."""

from pathlib import Path

import pytest

import gguf_files


@pytest.fixture(scope="session")
def small(tmp_path_factory) -> Path:
    """The folder of a model with few tokens: many take long to write and to read."""
    return gguf_files.small_checkpoint(tmp_path_factory.mktemp("small"))
