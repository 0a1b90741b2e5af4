"""Seconds of a forward by its rows: measured beforehand, corrected in use."""

import math
from collections.abc import Mapping
from itertools import pairwise

from foreword.estimators import OUTLIER, interpolated, steadied

NEAR = 0.2
"""Weight of a forward in the cost of its own rows, falling by e for each factor of 2 in
rows: few rows wait for memory, many for the processor.
"""
FAR = 0.02
"""Long-run weight of a forward in the cost of all rows: fifty adapt it."""
FAR_AT_FIRST, FADES = 0.5, 0.6
"""The same of the first forward, since the table may be of another hour, and the factor
on it per forward, down to FAR: seven forwards.
"""
LEAST = 1e-7
"""Seconds of a forward; a coarse clock may show 0."""


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
        self._far = FAR_AT_FIRST
        """Weight of one forward for other row counts."""
        self._near: dict[int, list[float]] = {}
        """Rows of a forward -> its extra weight for each measured row count."""
        self._known: dict[int, float] = {}
        """Rows -> seconds, as asked for since the last correction."""

    def seconds(self, rows: int) -> float:
        """Return the expected seconds, between or beyond the measured row counts."""
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
                near.append(NEAR * math.exp(-apart))
        # On a log scale: otherwise a noisy clock would raise unused row counts without
        # end.
        for place, weight in enumerate(near):
            moved = self._base[place] * off ** max(self._far, weight)
            self._base[place] = max(moved, LEAST)
        self._known.clear()
        self._far = max(FADES * self._far, FAR)
