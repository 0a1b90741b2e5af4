"""Seconds of a forward by its number of rows: measured beforehand, and corrected in
use.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

from foreword.estimators import OUTLIER, interpolated, steadied

FAR = 0.02
"""Long-run weight of one forward in the correction of all row counts, however far from
its own.
"""
LEAST = 1e-7
"""Seconds. Lower bound of any forward; a coarse clock may show 0."""


class Costs:
    """Table of seconds by number of rows, interpolated and corrected by every round."""

    def __init__(self, measured: Mapping[int, float]) -> None:
        self._rows = sorted(measured)
        self._base = [measured[rows] for rows in self._rows]
        self._far = 0.3
        """Weight of one forward for other row counts: large at first, since the table
        may be outdated.
        """
        self._near: dict[int, list[float]] = {}
        """Rows of a forward -> its extra weight for each measured row count."""

    def seconds(self, rows: int) -> float:
        """Return the expected seconds, interpolated between measured row counts and
        extrapolated beyond.
        """
        return interpolated(rows, self._rows, self._base)

    def slope(self, rows: int, more: int) -> float:
        """Return the mean seconds per row of `more` rows added to `rows`."""
        return max(self.seconds(rows + more) - self.seconds(rows), 0.0) / more

    def correct(self, rows: int, seconds: float) -> None:
        """Learn from a forward; one slow outlier has little effect.

        It weighs most for similar row counts: few rows are bound by memory and many by
        the processor, and other programs may slow down only one of the two.
        """
        expected = self.seconds(rows)
        off = max(steadied(seconds, expected) / expected, 1 / OUTLIER)
        near = self._near.get(rows)
        if near is None:
            near = self._near[rows] = [
                0.2 * math.exp(-abs(math.log2(measured / rows)))
                for measured in self._rows
            ]
        # On a log scale: otherwise a noisy clock would raise unused row counts without
        # end.
        moved = (
            base * off ** (self._far + weight)
            for base, weight in zip(self._base, near, strict=True)
        )
        self._base = [max(base, LEAST) for base in moved]
        self._far = max(0.5 * self._far, FAR)
