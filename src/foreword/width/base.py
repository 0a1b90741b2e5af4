"""What decides how much to guess, and the simplest that does.

Knows sequences and drafts; knows nothing about models or methods.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol, runtime_checkable

from foreword.types import Clock, Draft, Sequence


@runtime_checkable
class Width(Protocol):
    """Decides how many guesses a sequence gets and learns from what became of them."""

    @property
    def floor(self) -> float:
        """The chance below which no guess can pay for its scoring."""
        ...

    def nodes(self, sequence: Sequence, company: int) -> int:
        """Guesses for the next round of a sequence that shares its forward with `company` others."""
        ...

    def trim(self, draft: Draft) -> Draft:
        """The draft without the guesses that are not worth their scoring; only where it says how likely they are."""
        ...

    def clocked(self, rows: int, clock: Clock) -> None:
        """What the last round cost; `rows` is the size of its forward."""
        ...

    def learn(self, sequence: Sequence, outcome: Outcome) -> None:
        """What became of the guesses of a sequence in that round."""
        ...

    def release(self, sequence: Sequence) -> None:
        """The sequence has ended."""
        ...


@dataclass(frozen=True, slots=True)
class Outcome:
    """One round of one sequence."""

    asked: int
    drafted: int
    """Depth of the deepest guess; the number of guesses where they are a chain."""
    accepted: int
    guess: float
    """Seconds spent guessing, the whole batch together."""
    seconds: float
    """Seconds of the round, the whole batch together."""


class Fixed:
    """Always the same number of guesses."""

    floor = 0.0

    def __init__(self, count: int) -> None:
        self.count = count

    def nodes(self, sequence: Sequence, company: int) -> int:
        return self.count

    def trim(self, draft: Draft) -> Draft:
        return draft

    def clocked(self, rows: int, clock: Clock) -> None:
        pass

    def learn(self, sequence: Sequence, outcome: Outcome) -> None:
        pass

    def release(self, sequence: Sequence) -> None:
        pass
