"""Waits for what another process does, and says why it did not."""

import re
import socket
import subprocess
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from threading import Event, Timer
from time import monotonic
from typing import TypeVar

import pytest

LIMIT = 120.0
"""Seconds. What takes longer even on a busy machine does not come any more."""
STEP = 0.02
"""Seconds between two looks."""
T = TypeVar("T")


def wait_for(
    look: Callable[[], T],
    what: str,
    process: subprocess.Popen | None = None,
    log: Path | None = None,
) -> T:
    """Return a function's result once true; fail once the process has ended."""
    last = monotonic() + LIMIT
    while True:
        code = None if process is None else process.poll()
        if value := look():
            return value
        if code is not None or monotonic() > last:
            why = f"none in {LIMIT:g} s" if code is None else f"it ended by {code}"
            said = log.read_text() if log is not None and log.exists() else ""
            pytest.fail(f"waited for {what}: {why}\n{said}")
        Event().wait(STEP)


@contextmanager
def bounded(process: subprocess.Popen) -> Iterator[None]:
    """Kill a process after LIMIT, so that reading what it writes ends."""
    timer = Timer(LIMIT, process.kill)
    timer.start()
    try:
        yield
    finally:
        timer.cancel()


def line_with(pattern: str, process: subprocess.Popen[str]) -> re.Match[str]:
    """Return the first match in a process's stderr, read no further; or fail."""
    said = ""
    with bounded(process):
        for line in process.stderr:
            said += line
            if match := re.search(pattern, said, re.MULTILINE):
                return match
    pytest.fail(f"waited for {pattern!r}: none in {LIMIT:g} s\n{said}")


def free_port() -> int:
    """Return a port that is free."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def stop(process: subprocess.Popen, log: Path) -> None:
    """End a process by SIGTERM; fails, with the log, where that does not end it."""
    process.terminate()
    try:
        process.wait(LIMIT)
    except subprocess.TimeoutExpired:
        process.kill()
        pytest.fail(f"waited for its end by SIGTERM: {LIMIT:g} s\n{log.read_text()}")
