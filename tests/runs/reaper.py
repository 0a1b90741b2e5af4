"""Ends the processes that a run of the tests has started, however the run ends.

All of them have the mark of the run in their environment. This file is also a program
that waits for the end of the run's process; it then kills every process with its mark.
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


def started(pid: int) -> float:
    """Return when a process was started: seconds of CLOCK_BOOTTIME."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return int(fields[19]) / os.sysconf("SC_CLK_TCK")


def end(mark: str, since: float = 0.0) -> None:
    """Kill what a run has started since then, apart from this process, until nothing
    of it is left.
    """
    while True:
        left = []
        for pid in marked(mark):
            with suppress(OSError):
                if pid != os.getpid() and started(pid) >= since:
                    os.kill(pid, signal.SIGKILL)
                    left.append(pid)
        if not left:
            return


def main(pid: int, mark: str) -> None:
    """Wait for the end of the run's process, then kill what it has left."""
    with suppress(ProcessLookupError):
        select.select([os.pidfd_open(pid)], [], [])
    end(mark)


if __name__ == "__main__":
    main(int(sys.argv[1]), sys.argv[2])
