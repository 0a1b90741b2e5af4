"""What forwards cost by their number of rows, as measured before and as it turns out.

Knows seconds; knows nothing about models or guesses.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Mapping


class Costs:
    """Seconds of a forward by its number of rows: measured beforehand, and corrected by every round that is run."""

    def __init__(self, measured: Mapping[int, float]) -> None:
        self._rows = sorted(measured)
        self._base = [measured[rows] for rows in self._rows]
        self._drift = 1.0
        """All forwards grow dearer with the text, and with what else the machine does."""

    def seconds(self, rows: int) -> float:
        """Expected cost, in proportion between the measured widths and beyond them."""
        return self._drift * self._interpolated(rows)

    def slope(self, rows: int, more: int) -> float:
        """Seconds that one row costs on average, among `more` rows after the first `rows`."""
        return max(self.seconds(rows + more) - self.seconds(rows), 0.0) / more

    def correct(self, rows: int, seconds: float) -> None:
        """Learn from a forward that was run. One slow forward says little, so it counts little."""
        expected = self._interpolated(rows)
        ratio = min(max(seconds / (self._drift * expected), 0.25), 4.0)
        self._drift *= 1 + 0.1 * (ratio - 1)
        at = bisect_left(self._rows, rows)
        if at == len(self._rows) or self._rows[at] != rows:
            self._rows.insert(at, rows)
            self._base.insert(at, expected)
        self._base[at] = expected * (1 + 0.2 * (ratio - 1))

    def _interpolated(self, rows: int) -> float:
        at = bisect_left(self._rows, rows)
        if len(self._rows) == 1 or (at < len(self._rows) and self._rows[at] == rows):
            return self._base[min(at, len(self._base) - 1)]
        at = min(max(at, 1), len(self._rows) - 1)
        low, high = self._rows[at - 1], self._rows[at]
        cheap, dear = self._base[at - 1], self._base[at]
        return max(cheap + (dear - cheap) * (rows - low) / (high - low), 0.1 * cheap)
