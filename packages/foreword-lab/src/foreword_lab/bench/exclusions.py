"""Excluded entries and their reasons, so that one failing entry does not stop the
measurement of the others.
"""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager

from foreword.errors import ForewordError, named, words


class Exclusions:
    """The entries that failed, by name, each with its reason, in order of failure."""

    def __init__(self, progress: Callable[[str], None], needed: str) -> None:
        """`progress` gets a line for each.

        An error of `needed`, the reference of all ratios, is not caught.
        """
        self.reasons: dict[str, str] = {}
        self._progress, self._needed = progress, needed

    def __contains__(self, name: str) -> bool:
        return name in self.reasons

    @contextmanager
    def unless(self, name: str) -> Iterator[None]:
        """Exclude `name` if the body raises."""
        try:
            yield
        except Exception as error:
            if name == self._needed:
                raise
            self.reasons[name] = _reason(error)
            self._progress(f"{name} is left out: {self.reasons[name]}")


def _reason(error: Exception) -> str:
    """Return one line: the message, with the type for errors not Foreword's."""
    return words(error) if isinstance(error, ForewordError) else named(error)


def left_out(exclusions: Mapping[str, str]) -> str:
    """Return a line of a caption for each excluded row, each after a line break."""
    return "".join(f"\nleft out: {name} ({why})" for name, why in exclusions.items())
