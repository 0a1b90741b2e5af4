"""Waits for what another process does, and says why it did not."""

import subprocess
from collections.abc import Callable
from pathlib import Path
from threading import Event
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
    """Return what a function returns, as soon as it is true.

    Fails, with the log, once the process has ended or LIMIT is over.
    """
    last = monotonic() + LIMIT
    while True:
        code = None if process is None else process.poll()
        if value := look():
            return value
        if code is not None or monotonic() > last:
            why = f"none in {LIMIT:g} s" if code is None else f"it ended with {code}"
            said = log.read_text() if log is not None and log.exists() else ""
            pytest.fail(f"waited for {what}: {why}\n{said}")
        Event().wait(STEP)
