"""Seconds of a forward by its number of rows: measured beforehand, and corrected in
use; and seconds of drafting, by draft tokens and by tokens yet to read.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from itertools import pairwise

from foreword.budget.constants import C
from foreword.estimators import DECAY, OUTLIER, LinearCost, interpolated, steadied


class Costs:
    """Table of seconds by number of rows, interpolated and corrected by every round."""

    def __init__(self, measured: Mapping[int, float]) -> None:
        self._rows = sorted(measured)
        self._base = [measured[rows] for rows in self._rows]
        for at, (few, many) in enumerate(pairwise(self._rows), 1):
            # no forward takes longer than several that share its rows: such a time was
            # measured beside other programs
            most = self._base[at - 1] * many / few
            self._base[at] = min(self._base[at], most)
        self._far = C.far_at_first
        """Weight of one forward for other row counts: large at first, since the table
        may be outdated.
        """
        self._near: dict[int, list[float]] = {}
        """Rows of a forward -> its extra weight for each measured row count."""
        self._known: dict[int, float] = {}
        """Rows -> seconds, as asked for since the last correction."""

    def seconds(self, rows: int) -> float:
        """Return the expected seconds, interpolated between measured row counts and
        extrapolated beyond.
        """
        known = self._known.get(rows)
        if known is None:
            known = self._known[rows] = interpolated(rows, self._rows, self._base)
        return known

    def slope(self, rows: int, more: int) -> float:
        """Return the mean seconds per row of `more` rows added to `rows`."""
        added = self.seconds(rows + more) - self.seconds(rows)
        return max(added, 0.0) / more

    def correct(self, rows: int, seconds: float) -> None:
        """Learn from a forward; one slow outlier has little effect.

        It weighs most for similar row counts: few rows are bound by memory and many by
        the processor, and other programs may slow down only one of the two.
        """
        expected = self.seconds(rows)
        off = steadied(seconds, expected) / expected
        off = max(off, 1 / OUTLIER)
        near = self._near.get(rows)
        if near is None:
            near = self._near[rows] = []
            for measured in self._rows:
                apart = abs(math.log2(measured / rows))
                near.append(C.near * math.exp(-apart))
        # On a log scale: otherwise a noisy clock would raise unused row counts without
        # end.
        for place, weight in enumerate(near):
            moved = self._base[place] * off ** max(self._far, weight)
            self._base[place] = max(moved, C.seconds)
        self._known.clear()
        self._far = max(C.far_fades * self._far, C.far)


class DraftingCost:
    """Two linear fits: seconds by draft tokens that were made, and the remaining
    seconds by unread tokens.
    """

    def __init__(self) -> None:
        self._line = LinearCost()
        self._square = 0.0
        self._both = 0.0
        """Sums of the second fit, which goes through zero: rounds weigh by the tokens
        they read.
        """

    @property
    def measured(self) -> bool:
        """Whether a round with nothing to catch up on was seen."""
        return self._line.weight > 0

    @property
    def rounds(self) -> int:
        """Return the rounds that the fit rests on; old ones count less."""
        return round(self._line.weight)

    @property
    def catch_up_measured(self) -> bool:
        """Whether a round with unread tokens was seen after such a one."""
        return self._square > 0

    @property
    def each(self) -> float:
        """Seconds per further draft token."""
        return self._line.each

    def seconds(self, count: float, share: float = 1.0) -> float:
        """Return the seconds of drafting `count` tokens; `share` is the part of the
        fixed cost to include.
        """
        return share * self._line.start + self._line.each * count

    def catch_up(self, unread: int) -> float:
        """Return the seconds of reading `unread` tokens first; 0 until measured."""
        if not self._square:
            return 0.0
        return unread * self._both / self._square

    def learn(self, count: int, unread: int, seconds: float) -> None:
        """Record a round that made `count` draft tokens, for sequences with
        `unread` tokens in total.
        """
        if unread and not self.measured:
            return  # nothing yet separates reading from drafting
        if unread:
            left = max(seconds - self.seconds(count), 0.0)
            self._square *= DECAY
            self._square += unread**2
            self._both *= DECAY
            self._both += left * unread
        drafting = seconds - self.catch_up(unread)
        self._line.learn(count, max(drafting, 0.0))
