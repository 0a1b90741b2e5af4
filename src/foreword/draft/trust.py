"""How often guesses of a kind come true: estimated as the text is written, so that chances are honest.

Knows outcomes by kind; knows nothing about how a guess is made.
"""

from __future__ import annotations

from collections.abc import Hashable

from foreword.draft.evidence import finite

STEADINESS = 4.0
"""Outcomes that the first belief is worth."""
BELIEF = 0.5
"""Promised draft tokens that are always believed to have come true: what was learnt fades where nothing is promised."""
MEMORY = 0.99
"""Weight of the past, per outcome: about a hundred are remembered."""


class Trust:
    """Running estimates, one for each kind of guess, each a Beta posterior whose past fades."""

    __slots__ = ("_right", "_tried")

    def __init__(self) -> None:
        self._right: dict[Hashable, float] = {}
        self._tried: dict[Hashable, float] = {}

    def chance(self, kind: Hashable, prior: float) -> float:
        """The chance, in (0, 1), that a guess of this kind comes true; `prior` is what to believe before any did."""
        return (self._right.get(kind, 0.0) + STEADINESS * prior) / (self._tried.get(kind, 0.0) + STEADINESS)

    def learn(self, kind: Hashable, right: bool) -> None:
        """A guess of this kind came true, or did not."""
        self._right[kind] = MEMORY * self._right.get(kind, 0.0) + right
        self._tried[kind] = MEMORY * self._tried.get(kind, 0.0) + 1


class Earned:
    """What promised chances turn out to be worth: guesses that came true over guesses that should have."""

    __slots__ = ("_came", "_promised")

    def __init__(self) -> None:
        self._promised = self._came = 5.0 - BELIEF

    def promise(self, guesses: float) -> None:
        """So many are expected to come true in this round; earlier ones count less from now on."""
        if not finite(guesses):
            return
        self._promised, self._came = 0.98 * self._promised + guesses, 0.98 * self._came

    def keep(self, guesses: int) -> None:
        """So many did."""
        self._came += guesses

    @property
    def share(self) -> float:
        """What a promised chance is to be multiplied by."""
        return min(max((self._came + BELIEF) / (self._promised + BELIEF), 0.2), 1.2)
