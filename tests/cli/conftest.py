"""Runs the real program, as a shell would: another process, its own streams, its exit
code.

Where only words and exit codes are looked at, the same entry point runs in this
process, which has imported everything.
"""

import io
import os
import signal
import subprocess
import sys
import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from transformers.utils import logging

import foreword
from foreword.cli import main

SOURCE = Path(foreword.__file__).parents[1]


@dataclass(frozen=True)
class Shell:
    """Starts `foreword` with one thread, no network and no colour of its own accord."""

    folder: Path

    def start(self, *arguments: str, **environment: str) -> subprocess.Popen[str]:
        """The program with its three streams as text pipes."""
        kept = {
            name: value
            for name, value in os.environ.items()
            if name not in ("FORCE_COLOR", "NO_COLOR")
        }
        own = {
            "PYTHONPATH": str(SOURCE),
            "OMP_NUM_THREADS": "1",
            "HF_HUB_OFFLINE": "1",
            "COLUMNS": "100",
        }
        pipe = subprocess.PIPE
        return subprocess.Popen(
            [sys.executable, "-m", "foreword", *arguments],
            cwd=self.folder,
            env=kept | own | environment,
            stdin=pipe,
            stdout=pipe,
            stderr=pipe,
            # a long answer that nobody reads waits, so a test can be sure that it has
            # not ended
            pipesize=4096,
            text=True,
            encoding="utf-8",
        )

    def __call__(
        self, *arguments: str, typed: str = "", **environment: str
    ) -> subprocess.CompletedProcess[str]:
        """Run it to its end with `typed` on its standard input."""
        process = self.start(*arguments, **environment)
        out, err = process.communicate(typed, timeout=120)
        return subprocess.CompletedProcess(arguments, process.returncode, out, err)

    @staticmethod
    def rest(process: subprocess.Popen[str]) -> tuple[str, str]:
        """What else a process says until it ends, after some of its output has been
        read.

        (`communicate` would lose what the text streams have already taken in.)
        """
        process.stdin.close()
        said = process.stdout.read(), process.stderr.read()
        process.stdout.close()
        process.stderr.close()
        process.wait(timeout=60)
        return said


@dataclass(frozen=True)
class Here:
    """Runs `foreword` in this process."""

    folder: Path
    patch: pytest.MonkeyPatch
    capture: pytest.CaptureFixture[str]

    def __call__(
        self, *arguments: str, typed: str | None = "", **environment: str
    ) -> subprocess.CompletedProcess[str]:
        with self.patch.context() as patch, warnings.catch_warnings():
            patch.chdir(self.folder)
            for name, value in {
                "HF_HUB_OFFLINE": "1",
                "COLUMNS": "100",
                **environment,
            }.items():
                patch.setenv(name, value)
            patch.setattr(sys, "argv", ["foreword", *arguments])
            patch.setattr(
                sys, "stdin", None if typed is None else io.StringIO(typed, newline="")
            )
            # the program sets some of its own
            patch.setattr(os, "environ", os.environ.copy())
            self.capture.readouterr()
            with pytest.raises(SystemExit) as ended:
                main()
            out, err = self.capture.readouterr()
        return subprocess.CompletedProcess(arguments, ended.value.code or 0, out, err)


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
    """The library on the same family: the program must say what it says."""
    return foreword.LLM()
