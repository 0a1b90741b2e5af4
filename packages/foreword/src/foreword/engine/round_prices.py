"""What rounds take, in rounds of the same batch without draft tokens."""

from __future__ import annotations

from foreword.budget import AdaptiveBudget, Costs
from foreword.engine.sub_batch import SubBatch
from foreword.estimators import running_mean
from foreword.types import Clock

ROWS = 4
"""Rows over which the price of one more is taken: a usual draft."""


class RoundPrices:
    """Prices of rounds by the costs of forwards, which rounds correct."""

    def __init__(self, costs: Costs) -> None:
        self._costs = costs
        self._overhead = 0.0
        """Seconds of verify and commit per request in a round without draft tokens."""

    def plain_seconds(self, texts: int) -> float:
        """Return the expected seconds of a round of so many requests without draft
        tokens.
        """
        seconds = self._costs.seconds(texts)
        return seconds + texts * self._overhead

    def row(self, texts: int) -> float:
        """Return the price of one more row of the target."""
        slope = self._costs.slope(texts, ROWS)
        return slope / self.plain_seconds(texts)

    def correct(self, texts: int, clock: Clock) -> None:
        """Learn from a round without draft tokens."""
        self._costs.correct(texts, clock.score)
        after = clock.verify + clock.commit
        each = after / texts
        self._overhead = running_mean(self._overhead, each)

    def spent(
        self, sub_batch: SubBatch, wrote: int, drafted: int, reading: int
    ) -> float:
        """Return the price of a round: both sides as fast as the machine is now, and
        without prompts.
        """
        clock, costs = sub_batch.clock, self._costs
        trees = sub_batch.draft.trees
        nodes = sum(map(len, trees))
        if reading:
            more = costs.seconds(wrote + nodes)
            more -= costs.seconds(wrote)
            longer = clock.propose + max(more, 0.0)
            return 1.0 + longer / self.plain_seconds(wrote)
        rows = wrote + drafted
        budget = sub_batch.speculator.budget
        if not isinstance(budget, AdaptiveBudget):
            costs.correct(rows, clock.score)
        pace = clock.score / costs.seconds(rows)
        after = clock.verify + clock.commit
        requests = len(sub_batch.scheduled)
        overhead = min(requests * self._overhead, after)
        plain = pace * costs.seconds(wrote) + overhead
        scoring = pace * costs.seconds(wrote + nodes)
        return (clock.propose + scoring + after) / plain
