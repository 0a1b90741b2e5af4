"""What is learnt about drafters that say how likely their draft tokens are: how many to ask for, and what it brings.

Knows counts and seconds; knows nothing about drafters.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from foreword.draft.making import Making
from foreword.draft.trust import Earned

MOST = 48
"""Largest tree that is ever tried."""


@dataclass(slots=True)
class Odds:
    """What is learnt about drafters that say how likely their guesses are."""

    known: bool = False
    """Such drafts have been seen."""
    most: int = 8
    """Guesses to ask for: more than are kept after trimming, so that it can grow."""
    made: int | None = None
    """Guesses in the draft of this round, before trimming; None where none was asked for."""
    making: Making = field(default_factory=Making)
    earned: Earned = field(default_factory=Earned)

    def settle(self, kept: list[int], promised: float) -> None:
        self.known = True
        self.most = min(max(max(kept, default=0) + 2, (15 * self.most) // 16, 4), MOST)
        if kept and max(kept) >= self.most - 2:
            self.most = min(self.most + 4, MOST)
        self.earned.promise(promised)
