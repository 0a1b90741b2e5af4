"""Who is left out of a measurement, and why: whatever is wrong with one contender, the others can be measured.

Knows names and errors; knows nothing about what contenders do.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from foreword.errors import ForewordError, named, words


class LeftOut:
    """The contenders that failed, each with its reason, in the order in which they did."""

    def __init__(self, progress: Callable[[str], None], needed: str) -> None:
        """`progress` is told of each. The error of `needed`, which the others are compared with, is not caught."""
        self.reasons: dict[str, str] = {}
        self._progress, self._needed = progress, needed

    def __contains__(self, name: str) -> bool:
        return name in self.reasons

    @contextmanager
    def unless(self, name: str) -> Iterator[None]:
        """Leave `name` out when what follows raises."""
        try:
            yield
        except Exception as error:
            if name == self._needed:
                raise
            self.reasons[name] = _told(error)
            self._progress(f"{name} is left out: {self.reasons[name]}")


def _told(error: Exception) -> str:
    """One line: an error of ours says what was wrong, of others the kind is told too."""
    return words(error) if isinstance(error, ForewordError) else named(error)
