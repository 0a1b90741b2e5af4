"""Ends the processes that a run of the tests has started, however it ends: they have
its mark in their environment. Also the program that waits.
"""

import os
import select
import signal
import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from uuid import uuid4

MARK = "FOREWORD_TEST_RUN"
"""Environment variable. A run inside another run adds to its mark."""


def begin() -> None:
    """Mark this process and the ones that it will start, and watch it."""
    os.environ[MARK] = f"{os.environ.get(MARK, '')}/{uuid4().hex}"
    words = ["-I", "-S", __file__, str(os.getpid()), os.environ[MARK]]
    # in a session of its own: Ctrl-C at the terminal must not end it
    os.posix_spawn(sys.executable, [sys.executable, *words], {}, setsid=True)


def marked(mark: str) -> Iterator[int]:
    """Yield the processes that a run has started."""
    wanted = f"{MARK}={mark}".encode()
    for folder in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            if wanted in (folder / "environ").read_bytes():
                yield int(folder.name)


def end(mark: str) -> None:
    """Kill what a run has started, until nothing of it is left."""
    while pids := [*marked(mark)]:
        for pid in pids:
            with suppress(OSError):
                os.kill(pid, signal.SIGKILL)


def main(pid: int, mark: str) -> None:
    """Wait for the end of the run's process, then kill what it has left."""
    with suppress(ProcessLookupError):
        select.select([os.pidfd_open(pid)], [], [])
    end(mark)


if __name__ == "__main__":
    main(int(sys.argv[1]), sys.argv[2])
