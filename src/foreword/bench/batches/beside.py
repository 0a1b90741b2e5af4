"""A program that keeps one core busy, for measurements beside it."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager

BUSY = "print(flush=True)\nwhile True: pass"
"""It says that it has begun, and computes until it is killed."""


@contextmanager
def busy_core() -> Iterator[None]:
    """Keep one core busy meanwhile, as another program would."""
    command = [sys.executable, "-c", BUSY]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as other:
        try:
            assert other.stdout is not None
            other.stdout.readline()
            yield
        finally:
            other.kill()
