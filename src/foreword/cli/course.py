"""The course of something long, on stderr: a bar with the time that is left on a terminal, lines in a pipe.

Knows what lines look like; knows nothing about what goes on.
"""

from __future__ import annotations

import re

from foreword.cli import edge, show

COUNTED = re.compile(r"([\d,]+) of ([\d,]+)\b[:, ]*(.*)")
"""A line that says how much is done: "3 of 21: what is next"."""


class Course:
    """Takes lines as they come; those that count move the bar."""

    def __init__(self, *, quiet: bool = False) -> None:
        self._bar = show.bar(quiet=quiet)
        self._task = self._bar.add_task("", total=None)

    def __enter__(self) -> Course:
        self._bar.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._bar.stop()

    def __call__(self, line: str) -> None:
        """One line, of any kind."""
        found = COUNTED.match(line)
        if found is None or self._bar.disable:
            edge.note(line)
            return
        done, total = (int(number.replace(",", "")) for number in found.groups()[:2])
        self._bar.update(self._task, completed=done, total=total, description=found[3])
