"""`foreword` in this process, and as a process of its own."""

import signal
from collections.abc import Iterator
from pathlib import Path

import pytest
from transformers.utils import logging

import foreword
from command import Here, Shell


@pytest.fixture(autouse=True, scope="session")
def interruptible() -> None:
    """What a shell starts in the background ignores interrupts, and so would every
    program that is started here.
    """
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture
def shell(tmp_path: Path) -> Shell:
    return Shell(tmp_path)


@pytest.fixture
def here(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    unchecked: None,
) -> Here:
    return Here(tmp_path, monkeypatch, capsys)


@pytest.fixture
def unbarred() -> Iterator[None]:
    """The program turns the bars of transformers off by the environment, which a
    process reads but once.
    """
    logging.disable_progress_bar()
    yield
    logging.enable_progress_bar()


@pytest.fixture(scope="session")
def llm() -> foreword.LLM:
    """The library on the same models: the program must write the same text."""
    return foreword.LLM()
