"""What forwards cost by their number of rows, as measured before and as it turns out.

Knows seconds; knows nothing about models or guesses.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Mapping

from foreword.draft.evidence import OUTLIER, steadied

FAR = 0.02
"""How much a forward says about those of widths far from its own, in the long run."""
LEAST = 1e-7
"""Seconds that no forward takes less than; a coarse clock may show none at all."""


class Costs:
    """Seconds of a forward by its number of rows: measured beforehand, and corrected by every round that is run."""

    def __init__(self, measured: Mapping[int, float]) -> None:
        self._rows = sorted(measured)
        self._base = [measured[rows] for rows in self._rows]
        self._far = 0.3
        """How much a forward says about those of other widths: much at first, for the table may be old."""
        self._near: dict[int, list[float]] = {}
        """Rows -> how much forwards of so many say about each measured width."""

    def seconds(self, rows: int) -> float:
        """Expected cost, in proportion between the measured widths and beyond them."""
        at = bisect_left(self._rows, rows)
        if len(self._rows) == 1 or (at < len(self._rows) and self._rows[at] == rows):
            return self._base[min(at, len(self._base) - 1)]
        at = min(max(at, 1), len(self._rows) - 1)
        low, high = self._rows[at - 1], self._rows[at]
        cheap, dear = self._base[at - 1], self._base[at]
        return max(cheap + (dear - cheap) * (rows - low) / (high - low), 0.1 * cheap)

    def slope(self, rows: int, more: int) -> float:
        """Seconds that one row costs on average, among `more` rows after the first `rows`."""
        return max(self.seconds(rows + more) - self.seconds(rows), 0.0) / more

    def correct(self, rows: int, seconds: float) -> None:
        """Learn from a forward that was run. One slow forward says little, so it counts little.

        It says most about forwards of about as many rows: where few rows wait for the memory and many for the
        processor, other programs slow down the one and not the other.
        """
        expected = self.seconds(rows)
        off = max(steadied(seconds, expected) / expected, 1 / OUTLIER)
        near = self._near.get(rows)
        if near is None:
            near = self._near[rows] = [0.2 * math.exp(-abs(math.log2(width / rows))) for width in self._rows]
        # By the logarithm: else clocks that jump about would raise the widths that nobody runs, without end.
        moved = (base * off ** (self._far + weight) for base, weight in zip(self._base, near, strict=True))
        self._base = [max(base, LEAST) for base in moved]
        self._far = max(0.5 * self._far, FAR)
