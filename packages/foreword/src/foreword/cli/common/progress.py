"""Progress of a long command on stderr: a bar on a terminal, lines in a pipe."""

import re

from foreword.cli.common import render, runtime

COUNTED = re.compile(r"([\d,]+) of ([\d,]+)\b[:, ]*(.*)")
"""A line that counts: "3 of 21: next item"."""


class LineProgress:
    """Receiver of progress lines; a line that counts moves the bar."""

    def __init__(self, *, quiet: bool = False) -> None:
        self._bar = render.bar(quiet=quiet)
        self._task = self._bar.add_task("", total=None)

    def __enter__(self) -> "LineProgress":
        self._bar.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._bar.stop()

    def __call__(self, line: str) -> None:
        """Show one line, or move the bar if it counts."""
        match = COUNTED.match(line)
        if match is None or self._bar.disable:
            runtime.note(line)
            return
        done, total = (int(number.replace(",", "")) for number in match.groups()[:2])
        self._bar.update(self._task, completed=done, total=total, description=match[3])
