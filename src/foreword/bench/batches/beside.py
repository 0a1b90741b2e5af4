"""A program that keeps one core busy, for measurements beside it."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager

BUSY = """
import os, sys, threading

threading.Thread(target=lambda: (sys.stdin.read(), os._exit(0))).start()
print(flush=True)
while True:
    pass
"""
"""It says that it has begun, and computes until its input ends: also where the process
that started it is killed.
"""


@contextmanager
def busy_core() -> Iterator[None]:
    """Keep one core busy meanwhile, as another program would."""
    command = [sys.executable, "-c", BUSY]
    pipe = subprocess.PIPE
    with subprocess.Popen(command, stdin=pipe, stdout=pipe) as other:
        assert other.stdin is not None
        assert other.stdout is not None
        try:
            other.stdout.readline()
            yield
        finally:
            other.stdin.close()
