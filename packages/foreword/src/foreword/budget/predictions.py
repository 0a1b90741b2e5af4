"""Statistics on drafters that state probabilities: how many draft tokens to request."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from foreword.budget.costs import Costs
from foreword.estimators import CalibrationRatio
from foreword.types.params import NODES

TREE, CHEAP = 48, 2.0
"""Draft tokens of the largest tree, unless its forward takes no longer than so many of
one row: it waits for a disk.
"""
BEGIN, LEAST = 8, 4
"""Draft tokens at first where probabilities are stated, and the least of them."""
MARGIN = 2
"""Draft tokens requested beyond the number that was kept, likewise."""
SHRINK = 16
"""The number falls by one part in so many a round, slower than it grows."""
STEPS = 12
"""Rounds in which the number can grow from nothing to the largest tree."""
FLOOR = 0.8
"""Highest floor on probabilities: a higher one could stop drafting for good."""


def largest(cost: Mapping[int, float]) -> int:
    """Return the draft tokens of the largest tree, by seconds by rows."""
    seconds = CHEAP * cost[min(cost)]
    cheap = max(rows for rows in cost if cost[rows] <= seconds)
    return max(TREE, min(cheap - 1, NODES))


@dataclass(slots=True)
class DraftProbabilities:
    """Statistics on drafts whose tokens have stated acceptance probabilities."""

    limit: int = TREE
    """Draft tokens of the largest tree."""
    available: bool = False
    """Such drafts have been seen."""
    nodes: int = BEGIN
    """Draft tokens to request: more than trimming keeps, so that the count can grow."""
    levels: int | None = None
    """Levels of this round's trees before trimming, which each took a forward of a
    draft model; None if nothing was requested."""
    calibration: CalibrationRatio = field(default_factory=CalibrationRatio)

    def floor(
        self, rows: int, costs: Costs, pace: float, drafting: float = 0.0
    ) -> float:
        """Return the probability at which a draft token earns its scoring, and
        `drafting` seconds; `pace`: tokens per second of all `rows` sequences.
        """
        if not self.available:
            return 0.0
        # the first tokens cost least, and far row counts are known least
        scoring = min(costs.slope(rows, count) for count in (LEAST, self.nodes))
        seconds = scoring + drafting
        earned = self.calibration.share
        return min(pace * seconds / earned, FLOOR)

    def settle(self, kept: list[int], expected: float) -> None:
        """Update `nodes` by the tokens kept; `expected`: sum of their probabilities."""
        self.available = True
        more = max(kept, default=0) + MARGIN
        fewer = (SHRINK - 1) * self.nodes // SHRINK
        self.nodes = min(max(more, fewer, LEAST), self.limit)
        if kept and max(kept) >= self.nodes - MARGIN:
            step = self.limit // STEPS
            self.nodes = min(self.nodes + step, self.limit)
        self.calibration.promise(expected)

    def paying(
        self, probabilities: Sequence[float], rows: int, costs: Costs, spent: float
    ) -> int:
        """Return how many draft tokens of these probabilities, likeliest first,
        maximize tokens per second.

        `rows`: sequences that drafted; `spent`: seconds of the round that do not depend
        on the number.
        """
        best = 0
        fastest = rows / (costs.seconds(rows) + spent)
        earned = float(rows)
        for count, probability in enumerate(probabilities, 1):
            earned += self.calibration.share * probability
            rate = earned / (costs.seconds(rows + count) + spent)
            if rate > fastest:
                best = count
                fastest = rate
        return best
