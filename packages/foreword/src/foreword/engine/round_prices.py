"""What rounds take, in rounds of the same batch without draft tokens."""

from dataclasses import dataclass

from foreword.budget import Costs
from foreword.budget.adaptive import Terms
from foreword.budget.choice import TRIAL, Choice
from foreword.estimators import finite, running_mean
from foreword.types import Clock

ROWS = 4
"""Rows over which the price of one more is taken: a usual draft."""
LEAST, MOST = 0.5, 1.2
"""Bounds of a forward's time over one alike before; beyond, one was interrupted."""
WEIGHT = 0.3
"""Weight of the newest such share: there is one in some hundred rounds."""


@dataclass(frozen=True, slots=True)
class RoundRows:
    """Rows of the forward of a round."""

    requests: int
    """Requests that write."""
    drafted: int
    """Draft tokens."""
    reading: int = 0
    """Prompt tokens."""


class RoundPrices:
    """Prices of rounds by the costs of forwards, which rounds correct."""

    def __init__(self, costs: Costs) -> None:
        self.costs = costs
        self.overhead = 0.0
        """Seconds of verify and commit per request in a round without draft tokens."""
        self._timed = False
        """Whether such a round was seen."""
        self._share = 1.0
        """Share of a forward's seconds that it takes after others alike: then no draft
        model has driven its weights out of the caches.
        """
        self._first = 0, 0.0
        """Requests and seconds of the forward, of the first of several plain rounds."""

    def plain_seconds(self, texts: int) -> float:
        """Return the expected seconds of a plain round, after others alike."""
        seconds = self._again * self.costs.seconds(texts)
        return seconds + texts * self.overhead

    @property
    def _again(self) -> float:
        return min(self._share, 1.0)

    def row(self, texts: int) -> float:
        """Return the price of one more row of the target."""
        slope = self.costs.slope(texts, ROWS)
        return slope / self.plain_seconds(texts)

    def terms(self, choice: Choice, method: int, texts: int) -> Terms:
        """Return what draft tokens of a method take and must earn in such a round."""
        return Terms(
            self.plain_seconds(texts),
            choice.prices[method],
            texts,
            self.overhead,
            max(choice.guard.pace, 1.0),
        )

    def learn_plain(self, texts: int, clock: Clock, streak: int) -> None:
        """Learn from a round without draft tokens, the `streak`-th in succession."""
        if not finite(clock.total):
            return
        each = (clock.verify + clock.commit) / texts
        self.overhead = running_mean(self.overhead, each) if self._timed else each
        self._timed = True
        if streak == 1:
            self._first = texts, clock.score
            self.costs.correct(texts, clock.score)
            return
        requests, seconds = self._first
        if streak == TRIAL and requests == texts and seconds:
            share = min(max(clock.score / seconds, LEAST), MOST)
            self._share += WEIGHT * (share - self._share)
        self.costs.correct(texts, clock.score / self._again)

    def learn(self, clock: Clock, rows: RoundRows, requests: int) -> None:
        """Learn from a round with draft tokens; so many requests used the method."""
        if rows.reading or not finite(clock.total):
            return
        self.costs.correct(rows.requests + rows.drafted, clock.score)
        each = (clock.verify + clock.commit) / requests
        if not self._timed:
            self.overhead = min(self.overhead or each, each)

    def spent(
        self, clock: Clock, rows: RoundRows, requests: int, nodes: int
    ) -> tuple[float, float]:
        """Return the price of a round for a method of so many of its requests and draft
        tokens, and what of it was proposing: both sides as fast as the machine is now,
        and without prompts.
        """
        costs, wrote = self.costs, rows.requests
        plain = self._again * costs.seconds(wrote)
        if rows.reading:
            plain += wrote * self.overhead
            more = costs.seconds(wrote + nodes)
            more -= costs.seconds(wrote)
            longer = clock.propose + max(more, 0.0)
            return 1.0 + longer / plain, clock.propose / plain
        pace = clock.score / costs.seconds(wrote + rows.drafted)
        after = clock.verify + clock.commit
        plain = pace * plain + min(requests * self.overhead, after)
        scoring = pace * costs.seconds(wrote + nodes)
        total = clock.propose + scoring + after
        return total / plain, clock.propose / plain
