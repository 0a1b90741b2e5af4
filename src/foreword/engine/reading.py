"""Share of a round that reads prompts while other sequences write, set by measured
time.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeVar

P = TypeVar("P")
FIRST = 16
"""Prompt tokens read in the first round that is shared; later rounds follow the
measurements.
"""
LARGEST_STEP = 2.0
"""Factor by which the share changes at most from one round to the next, so that one
slow round does not undo what many have measured.
"""
ROUNDS = 16
"""Shared rounds after which one without prompts measures anew how long a round
takes.
"""
WEIGHT = 0.5
"""Weight of the newest round without prompts in the average."""
SHORTEST = 1e-4
"""Seconds. Least time that reading is taken to cost; below it clocks are noise."""


class ReadingShare:
    """Prompt tokens that a round may read without lasting longer than allowed.

    A stream beside a long prompt then slows to half its pace at most, on any machine.
    Of several prompts the shortest is read first, and every other round the one that
    came first, so that none waits for ever.
    """

    def __init__(self, seconds: float | None = None) -> None:
        """`seconds`: by which reading may lengthen a round; None: as long as the round
        takes without it.
        """
        self._seconds = seconds
        self._round: float | None = None
        """Seconds of a round that reads no prompt."""
        self._tokens = float(FIRST)
        self._shared = 0
        """Rounds that read prompts since the last one that did not."""
        self._turns = 0
        """Rounds in which several prompts were read."""

    def limit(self, most: int) -> int:
        """Return the prompt tokens that the next round may read, at most `most`; 0
        where it measures a round without them.
        """
        unmeasured = 1 if self._round is None else ROUNDS
        if self._shared >= unmeasured:
            return 0
        return max(1, min(int(self._tokens), most))

    def in_turn(self, prompts: Sequence[P], pending: Callable[[P], int]) -> Sequence[P]:
        """Return the prompts in the order in which the next round reads them; they come
        in the order of their arrival. `pending`: tokens of one that are not read.
        """
        if len(prompts) < 2:
            return prompts
        self._turns += 1
        if self._turns % 2:
            return sorted(prompts, key=pending)
        return prompts

    def measure(self, seconds: float, read: int) -> None:
        """Learn from a round in which sequences wrote, and `read` prompt tokens were
        read.
        """
        if not read:
            last = seconds if self._round is None else self._round
            self._round = WEIGHT * seconds + (1 - WEIGHT) * last
            self._shared = 0
            return
        self._shared += 1
        if self._round is None:
            return
        allowed = self._round if self._seconds is None else self._seconds
        factor = allowed / max(SHORTEST, seconds - self._round)
        factor = min(LARGEST_STEP, max(1 / LARGEST_STEP, factor))
        # the rest of a short prompt says little of a larger share
        if factor < 1 or read >= int(self._tokens):
            self._tokens = max(1.0, read * factor)
