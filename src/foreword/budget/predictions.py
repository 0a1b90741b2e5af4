"""Statistics on drafters that state probabilities: how many draft tokens to request,
and their calibration.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from foreword.budget.costs import Costs
from foreword.estimators import CalibrationRatio, LinearCost
from foreword.types.params import NODES

MOST = 48
"""Draft tokens. Largest tree tried, unless more rows are cheap."""
CHEAP = 2.0
"""Times the seconds of one row.

A tree may be larger than MOST if its forward takes no longer: it waits for a disk.
"""
STEPS = 12
"""Rounds in which the number of draft tokens can grow from nothing to the
largest tree.
"""


def largest(cost: Mapping[int, float]) -> int:
    """Return the draft tokens of the largest tree to try, at most NODES, by the seconds
    of a forward by rows.
    """
    cheap = max(rows for rows in cost if cost[rows] <= CHEAP * cost[min(cost)])
    return max(MOST, min(cheap - 1, NODES))


HIGHEST = 0.5
"""Highest floor. A higher one could stop all drafting, and then never sink again."""


@dataclass(slots=True)
class DraftProbabilities:
    """Statistics on drafts whose tokens have stated acceptance probabilities."""

    limit: int = MOST
    """Draft tokens of the largest tree."""
    available: bool = False
    """Such drafts have been seen."""
    most: int = 8
    """Draft tokens to request: more than trimming keeps, so that the count can grow."""
    count: int | None = None
    """Draft tokens of this round before trimming; None if none were requested."""
    cost: LinearCost = field(default_factory=LinearCost)
    calibration: CalibrationRatio = field(default_factory=CalibrationRatio)

    def floor(self, rows: int, costs: Costs, pace: float) -> float:
        """Return the probability at which a draft token earns its drafting and half of
        its scoring; `pace`: tokens per second of all `rows` sequences.
        """
        if not self.available:
            return 0.0
        seconds = 0.5 * costs.slope(rows, self.most) + self.cost.each
        return min(pace * seconds / self.calibration.share, HIGHEST)

    def settle(self, kept: list[int], expected: float) -> None:
        """Update `most` from the draft tokens kept per sequence; `expected` is the sum
        of their probabilities.
        """
        self.available = True
        self.most = min(
            max(max(kept, default=0) + 2, (15 * self.most) // 16, 4), self.limit
        )
        if kept and max(kept) >= self.most - 2:
            self.most = min(self.most + self.limit // STEPS, self.limit)
        self.calibration.promise(expected)

    def paying(
        self, probabilities: Sequence[float], rows: int, costs: Costs, overhead: float
    ) -> int:
        """Return how many draft tokens of these probabilities, likeliest first,
        maximize tokens per second.

        `rows`: sequences that drafted; `overhead`: seconds of verify and commit for
        each of them.
        """
        # All are drafted already, so their drafting time is spent either way.
        spent = rows * overhead + self.cost.start + self.cost.each * len(probabilities)
        best = 0
        fastest = rows / (costs.seconds(rows) + spent)
        earned = float(rows)
        for count, probability in enumerate(probabilities, 1):
            earned += self.calibration.share * probability
            rate = earned / (costs.seconds(rows + count) + spent)
            if rate > fastest:
                best, fastest = count, rate
        return best
