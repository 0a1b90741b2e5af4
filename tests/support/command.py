"""Runs `foreword` as a shell would: in this process, or in one of its own."""

import io
import json
import os
import select
import subprocess
import sys
import warnings
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import TextIO

import pytest

import foreword
from foreword.cli import main
from waiting import LIMIT, bounded

SOURCE = Path(foreword.__file__).parents[1]
HEAVY = tuple(
    "torch transformers numpy jaxtyping safetensors matplotlib accelerate ray".split()
)
"""Packages that a command may import only once it needs them."""
PROGRAM = f"""
import io, json, sys
from contextlib import redirect_stderr, redirect_stdout
from foreword.cli import main
found = []
for words in json.load(sys.stdin):
    sys.argv, said = ["foreword", *words], io.StringIO()
    try:
        with redirect_stderr(said), redirect_stdout(said):
            main()
    except SystemExit as ended:
        heavy = [name for name in {HEAVY!r} if name in sys.modules]
        found.append((ended.code or 0, " ".join(said.getvalue().split()), heavy))
print(json.dumps(found))
"""


def printed(*words: str, **environment: str) -> str:
    """Return what Python prints in a process of its own, which must end well."""
    done = subprocess.run(
        [sys.executable, *words],
        env=os.environ | environment,
        stdout=subprocess.PIPE,
        text=True,
        check=True,
        timeout=300,
    )
    return done.stdout


@dataclass(frozen=True)
class Ended:
    """How a command ended, what it wrote, and which heavy packages were imported."""

    code: int
    output: str
    heavy: list[str]


def run_apart(commands: Iterable[tuple[str, ...]], folder: Path) -> list[Ended]:
    """Run commands one after the other in one process that has imported nothing."""
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM],
        input=json.dumps([*commands]),
        cwd=folder,
        env={"PYTHONPATH": str(SOURCE), "HF_HUB_OFFLINE": "1", "COLUMNS": "200"},
        capture_output=True,
        text=True,
        check=True,
        timeout=LIMIT,
    )
    return [Ended(*one) for one in json.loads(done.stdout)]


def have_ended(pids: Iterable[int]) -> bool:
    """Wait until these processes, which need not be children, have ended."""
    for pid in pids:
        try:
            handle = os.pidfd_open(pid)
        except ProcessLookupError:
            continue
        ready, *_ = select.select([handle], [], [], 60)
        os.close(handle)
        if not ready:
            return False
    return True


@dataclass(frozen=True)
class Shell:
    """Starts `foreword` with one thread, no network and no colour of its own accord."""

    folder: Path

    def start(self, *arguments: str, **environment: str) -> subprocess.Popen[str]:
        """Start the program with its three streams as text pipes."""
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
            # a long answer blocks until it is read, so a test can be sure that it has
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
        """Return the rest of what a process writes; `communicate` would lose some."""
        process.stdin.close()
        with bounded(process):
            written = process.stdout.read(), process.stderr.read()
        process.stdout.close()
        process.stderr.close()
        process.wait(timeout=60)
        return written


@dataclass(frozen=True)
class Here:
    """Runs `foreword` in this process."""

    folder: Path
    patch: pytest.MonkeyPatch
    capture: pytest.CaptureFixture[str]

    def __call__(
        self, *arguments: str, typed: str | TextIO | None = "", **environment: str
    ) -> subprocess.CompletedProcess[str]:
        """Run it to its end; `typed` is its standard input, closed if None."""
        if isinstance(typed, str):
            typed = io.StringIO(typed, newline="")
        with self.patch.context() as patch, warnings.catch_warnings():
            patch.chdir(self.folder)
            for name, value in {
                "HF_HUB_OFFLINE": "1",
                "COLUMNS": "100",
                **environment,
            }.items():
                patch.setenv(name, value)
            patch.setattr(sys, "argv", ["foreword", *arguments])
            patch.setattr(sys, "stdin", typed)
            # the program sets some of its own
            patch.setattr(os, "environ", os.environ.copy())
            self.capture.readouterr()
            try:
                with pytest.raises(SystemExit) as ended:
                    main()
            except KeyboardInterrupt:
                pytest.fail("the command let Ctrl-C through")
            out, err = self.capture.readouterr()
        return subprocess.CompletedProcess(arguments, ended.value.code or 0, out, err)
