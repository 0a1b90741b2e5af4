"""The default budget: the number of draft tokens that maximizes tokens per second, from
measured costs and acceptance. Whether to draft at all is decided beside it
(budget/choice.py).

The count depends on past rounds alone, never on the draft tokens it applies to, so it
is exact under every rule. Draft tokens that were chosen, not drawn, may also be dropped
by their own probabilities (`trim`).
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from itertools import chain

from foreword.budget.base import DraftBudget, Measure, RoundResult
from foreword.budget.choice import Choice, Kind
from foreword.budget.costs import Costs
from foreword.budget.estimates import Price
from foreword.budget.predictions import DraftProbabilities, largest
from foreword.types import Batch, Draft, Request

UNTIMED = 0.25
"""Rounds that a forward of a draft model takes before any was timed: as much as a dear
one, so that the first drafts lose little.
"""


@dataclass(slots=True)
class Terms:
    """What draft tokens of a method take and must earn in the rounds to come."""

    plain: float
    """Seconds of a round without draft tokens."""
    price: Price = field(default_factory=Price)
    requests: int = 1
    """Requests in the round."""
    overhead: float = 0.0
    """Seconds of verify and commit per request."""
    speed: float = 1.0
    """Tokens of a request in the time of a round without draft tokens, at least 1."""

    @property
    def pace(self) -> float:
        """Tokens of a request per second."""
        return self.speed / self.plain

    @property
    def each(self) -> float:
        """Seconds of a forward of the draft model."""
        drafting = self.price.drafting
        return self.plain * (drafting.each if drafting.weight else UNTIMED)

    def proposing(self, levels: int) -> float:
        """Return the seconds of proposing drafts of so many levels."""
        start = self.plain * self.price.drafting.start
        return start + self.each * levels


class AdaptiveBudget(DraftBudget):
    """Budget that maximizes tokens per second; where drafting loses, a choice decodes
    plainly instead.

    If a drafter states probabilities, the likeliest draft tokens of the whole batch are
    kept while each earns more than its scoring costs (after arXiv 2607.05147, section
    on scheduling, and SMART/CaDDTree for trees). A chain of k others yields (1 + sum
    over j <= k of P(the first j are accepted)) tokens over the time of a round with k
    (Leviathan et al. 2023, section 3.3): the choice knows these, and sets k.
    """

    def __init__(self, cost: Mapping[int, float], costs: Costs | None = None) -> None:
        """`costs`: the table of another policy, which this one shares."""
        self._measured = cost
        self.costs = costs or Costs(cost)
        self.choices: dict[Kind, Choice] = {}
        """By kind of request: whether drafting pays, and by which method."""
        self.terms = Terms(self.costs.seconds(1))
        """Terms of the next round."""
        self._probabilities = DraftProbabilities(largest(cost))

    @classmethod
    def from_text(cls, source: str) -> Callable[[Measure], DraftBudget]:
        super().from_text(source)
        return lambda measure: cls(measure())

    def anew(self) -> "AdaptiveBudget":
        return AdaptiveBudget(self._measured, self.costs)

    @property
    def floors(self) -> tuple[float, float]:
        """Acceptance probabilities below which no draft token can pay for its scoring,
        and for a forward of the draft model after it, by measured costs; `trim` decides
        the rest.
        """
        terms = self.terms
        price = self._probabilities.floor
        rows = terms.requests
        scored = rows, self.costs, rows * terms.pace
        return price(*scored), price(*scored, terms.each)

    def priced(self, batch: Batch) -> Batch:
        floor, expand = self.floors
        pace = self.terms.pace
        return replace(batch, floor=floor, expand=expand, pace=pace)

    @property
    def stated(self) -> bool:
        """Whether the drafter states probabilities, so that `trim` sets the number."""
        return self._probabilities.available

    @property
    def levels(self) -> int | None:
        """Levels of the drafts of this round before they were trimmed, each a forward
        of a draft model; None where nothing was requested or no probability is stated.
        """
        return self._probabilities.levels

    def nodes(self, request: Request, others: int) -> int:
        self._probabilities.levels = None
        return self._probabilities.nodes

    def trim(self, draft: Draft) -> Draft:
        stated = self._probabilities
        if not (draft.nodes and draft.weighed):
            stated.levels = 0 if stated.available else None
            stated.calibration.promise(0.0)
            return draft
        rows = [tree.probabilities for tree in draft.trees]
        probabilities = sorted(chain.from_iterable(rows), reverse=True)
        stated.levels = sum(max(tree.depths) for tree in draft.trees)
        # all are drafted already
        spent = self.terms.proposing(stated.levels)
        spent += len(rows) * self.terms.overhead
        count = stated.paying(probabilities, len(rows), self.costs, spent)
        least = probabilities[count - 1] if count else 1.1
        kept = [sum(one >= least for one in row) for row in rows]
        stated.settle(kept, sum(probabilities[:count]))
        if kept == [len(row) for row in rows]:
            return draft
        return Draft(
            tree.pruned(range(count))
            for tree, count in zip(draft.trees, kept, strict=True)
        )

    def learn(self, request: Request, outcome: RoundResult) -> None:
        if outcome.asked:
            self._probabilities.calibration.keep(outcome.accepted)
