"""What decides how much to guess, and the simplest that does.

Knows sequences, drafts and laws; knows nothing about models or methods.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import ClassVar

from jaxtyping import Float
from torch import Tensor

from foreword.errors import InvalidRequest
from foreword.types import Clock, Draft, Sequence

Measure = Callable[[], Mapping[int, float]]
"""Measures the seconds of a forward by its number of rows."""


class Width(ABC):
    """Decides how many guesses a sequence gets and learns from what became of them.

    It never sees a guess that was drawn: whether one is kept may not depend on what it turned out to be (docs/laws.md).
    What it may look at is what was known before: past rounds, and the law that follows a prefix.
    """

    summary: ClassVar[str] = ""
    """One line for those who choose."""
    chains: ClassVar[bool] = False
    """It decides after every guess whether there is to be another (`stops`), so chains are guessed, no trees."""

    @classmethod
    def made(cls, measure: Measure) -> Width:
        """One for a target whose forwards `measure` measures. The default has no use for that."""
        del measure
        return cls()

    @classmethod
    def told(cls, source: str) -> Callable[[Measure], Width]:
        """What makes one, of what stands after its name and a colon. Raises InvalidRequest where that is of no use."""
        if source:
            raise InvalidRequest(f"this width takes nothing after its name, got {source!r}")
        return cls.made

    @property
    def floor(self) -> float:
        """The chance below which no guess can pay for its scoring."""
        return 0.0

    @property
    def pace(self) -> float:
        """Tokens a second at which each text grows; 0 where nobody looks at the time."""
        return 0.0

    @abstractmethod
    def nodes(self, sequence: Sequence, company: int) -> int:
        """Guesses for the next round of a sequence that shares its forward with `company` others, at most."""

    def stops(self, sequence: Sequence, depth: int, law: Float[Tensor, "vocab"]) -> bool:
        """Guess nothing after `depth` guesses, where `law` follows them (log-weights)? Asked before anything is drawn.

        Only where `chains` is set. The prefix is known and the guess in question is not, so this is exact under every
        rule.
        """
        del sequence, depth, law
        return False

    def trim(self, draft: Draft) -> Draft:
        """The draft without the guesses that are not worth their scoring. Never asked about guesses that were drawn."""
        return draft

    def clocked(  # noqa: B027 - a hook, empty by default
        self, rows: int, clock: Clock, reading: int = 0
    ) -> None:
        """What the last round cost: a forward over `rows`, one for each text that wrote and each guess.

        `reading` tokens of prompts were read beside them.
        """

    def learn(self, sequence: Sequence, outcome: Outcome) -> None:  # noqa: B027 - a hook, empty by default
        """What became of the guesses of a sequence in that round."""

    def release(self, sequence: Sequence) -> None:  # noqa: B027 - a hook, empty by default
        """The sequence has ended."""


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


class Fixed(Width):
    """Always the same number of guesses."""

    summary = "always the same number"

    def __init__(self, count: int) -> None:
        self.count = count

    def nodes(self, sequence: Sequence, company: int) -> int:
        return self.count
