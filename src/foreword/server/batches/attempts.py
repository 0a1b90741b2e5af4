"""Requests of a batch that were sent, kept on disk for the next start."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from pathlib import Path

from foreword.server.batches.lines import Line

MOST_ATTEMPTS = 2
"""Processes that ended while they answered a request, which then fails."""


class Attempts:
    """A file of the requests that were sent, beside the answers of a batch.

    It lies there after its process was killed; a process that stops deletes it.
    """

    def __init__(self, path: Path) -> None:
        """Read what processes that were killed have left, and append to it."""
        self._path, self._sent = path, set[int]()
        path.touch(0o600)
        starts = path.read_bytes().split()
        self._before = Counter(int(start) for start in starts if start.isdigit())
        self._file = path.open("ab", buffering=0)

    def __enter__(self) -> Attempts:
        return self

    def __exit__(self, *_: object) -> None:
        self._file.close()
        self._path.unlink()

    def parted(self, lines: Iterable[Line]) -> tuple[list[Line], ...]:
        """Part requests without an answer by how many processes ended after they were
        sent: none, one, more.
        """
        parts = tuple[list[Line], ...]([] for _ in range(MOST_ATTEMPTS + 1))
        for line in lines:
            parts[min(self._before[line.start], MOST_ATTEMPTS)].append(line)
        return parts

    def begin(self, line: Line) -> None:
        """Say that a request is sent, once."""
        if line.start not in self._sent:
            self._sent.add(line.start)
            self._file.write(b"%d\n" % line.start)
