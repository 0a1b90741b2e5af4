"""`foreword` in this process, and as a process of its own."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from transformers.utils import logging

import foreword
from command import Shell


@pytest.fixture
def shell(tmp_path: Path) -> Shell:
    return Shell(tmp_path)


@pytest.fixture
def unbarred() -> Iterator[None]:
    """The program hides transformers' bars by the environment, which is read once."""
    logging.disable_progress_bar()
    yield
    logging.enable_progress_bar()


@pytest.fixture(scope="session")
def llm() -> foreword.LLM:
    """The library on the same models: the program must write the same text."""
    return foreword.LLM()
