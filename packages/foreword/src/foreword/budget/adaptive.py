"""The default budget: the number of draft tokens that maximizes tokens per second, from
measured costs and acceptance. Whether to draft at all is decided beside it
(budget/choice.py).

The count depends on past rounds alone, never on the draft tokens it applies to, so it
is exact under every rule. Draft tokens that were chosen, not drawn, may also be dropped
by their own probabilities (`trim`).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import chain, product

from foreword.budget.base import DraftBudget, Measure, RoundResult
from foreword.budget.choice import Choice, Kind
from foreword.budget.constants import C
from foreword.budget.costs import Costs, DraftingCost
from foreword.budget.predictions import DraftProbabilities, largest
from foreword.estimators import OUTLIER, finite, running_mean
from foreword.types import Clock, Draft, Request


class AdaptiveBudget(DraftBudget):
    """Budget that maximizes tokens per second; where drafting loses, a choice decodes
    plainly instead.

    If a drafter states probabilities, the likeliest draft tokens of the whole batch are
    kept while each earns more than its scoring costs (after arXiv 2607.05147, section
    on scheduling, and SMART/CaDDTree for trees). A chain of k others yields (1 + sum
    over j <= k of P(the first j are accepted)) tokens over the time of a round with k
    (Leviathan et al. 2023, section 3.3): the choice knows these, and sets k.
    """

    summary = (
        "the most tokens per second, by measured costs and acceptance; 0 while "
        "drafting loses"
    )

    def __init__(self, cost: Mapping[int, float], costs: Costs | None = None) -> None:
        """`costs`: the table of another policy, which this one shares."""
        self._measured = cost
        self.costs = costs or Costs(cost)
        self.choices: dict[Kind, Choice] = {}
        """By kind of request: whether drafting pays, and by which method."""
        self._drafting_costs = {plain: DraftingCost() for plain in (True, False)}
        """By whether requests are plain: filters make drafting several times slower."""
        self.drafting_cost = self._drafting_costs[True]
        """The entry for the request of the last `nodes` call."""
        self.overhead = 0.0
        """Seconds of verify and commit per request."""
        kinds = product((True, False), repeat=2)
        self._paces = {kind: Pace() for kind in kinds}
        """By (greedy, plain): greedy text is easier to predict, filters take longer."""
        self._pace = self._paces[True, True]
        """The entry for the request of the last `nodes` call."""
        self._read: dict[int, int] = {}
        """By request: its tokens after the last round with draft tokens."""
        self._draft_probs = DraftProbabilities(largest(cost))
        self._requests = self._unread = 0
        """Requests of this round that may get draft tokens, and the tokens of them that
        the drafter has to read before.
        """
        self._filtered = False
        """Whether one of them has filters or the like."""
        self._batch_size = 1
        """Requests in this round."""
        self._spent = 1.0
        """Time of the last round, in rounds of the same batch without draft tokens."""

    @classmethod
    def from_measure(cls, measure: Measure) -> AdaptiveBudget:
        return cls(measure())

    def anew(self) -> AdaptiveBudget:
        return AdaptiveBudget(self._measured, self.costs)

    @property
    def floors(self) -> tuple[float, float]:
        """Floors by measured costs; `trim` decides the rest."""
        rows = self._batch_size
        each = self.drafting_cost.each
        price = self._draft_probs.floor
        scored = rows, self.costs, rows * self.pace
        return price(*scored), price(*scored, each)

    @property
    def pace(self) -> float:
        size = self._batch_size
        plain = self.costs.seconds(size)
        plain += size * self.overhead
        return self._pace.pace / plain

    @property
    def stated(self) -> bool:
        """Whether the drafter states probabilities, so that `trim` sets the number."""
        return self._draft_probs.available

    def nodes(self, request: Request, others: int) -> int:
        params = request.params
        self._batch_size = others + 1
        self._pace = self._paces[params.greedy, params.plain]
        self.drafting_cost = self._drafting_costs[params.plain]
        self._requests += 1
        self._filtered |= not params.plain
        unread = len(request.tokens) - self._read.get(request.id, 0)
        self._unread += unread if unread > C.unread else 0
        return self._draft_probs.most

    def trim(self, draft: Draft) -> Draft:
        stated = self._draft_probs
        if not (draft.nodes and draft.weighed):
            stated.levels = 0 if stated.available else None
            stated.calibration.promise(0.0)
            return draft
        rows = [tree.probabilities for tree in draft.trees]
        probabilities = sorted(chain.from_iterable(rows), reverse=True)
        stated.levels = sum(max(tree.depths) for tree in draft.trees)
        # all are drafted already
        spent = self.drafting_cost.seconds(stated.levels)
        spent += len(rows) * self.overhead
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

    def on_timing(self, rows: int, clock: Clock, reading: int = 0) -> None:
        if not finite(clock.total):
            clock = Clock()
        size, costs = self._batch_size, self.costs
        plain = costs.seconds(size)
        if reading:
            scoring = max(costs.seconds(rows) - plain, 0.0)
            plain += size * self.overhead
            longer = clock.propose + scoring
        else:
            after = clock.verify + clock.commit
            self.overhead = running_mean(self.overhead, after / size)
            # both as fast as the machine is now
            plain *= clock.score / costs.seconds(rows)
            plain += min(size * self.overhead, after)
            longer = clock.total - plain
            costs.correct(rows, clock.score)
        self._account(clock.propose, longer, rows - size, plain)

    def _account(
        self, propose: float, longer: float, drafted: int, plain: float
    ) -> None:
        """Record the cost of drafting in the last round, `longer` than a plain one by
        so many seconds; one slow round has little effect.
        """
        requests, unread = self._requests, self._unread
        cost = self._drafting_costs[not self._filtered]
        levels = self._draft_probs.levels
        self._requests = self._unread = 0
        self._filtered, self._draft_probs.levels = False, None
        if not requests:
            return
        self.drafting_cost = cost
        caught_up = cost.catch_up(unread)
        made = drafted if levels is None else levels
        if not cost.measured:
            # the first draft of a process takes longer than any later one
            longer -= propose
        elif not unread or cost.catch_up_measured:
            expected = cost.seconds(made) + caught_up
            propose = min(propose, OUTLIER * expected)
        cost.learn(made, unread, propose)
        longer = max(longer - caught_up, 0.0)
        self._spent = 1.0 + longer / max(plain, 1e-9)

    def learn(self, request: Request, outcome: RoundResult) -> None:
        if not (outcome.asked and finite(outcome.seconds)):
            return
        params, accepted = request.params, outcome.accepted
        self._read[request.id] = len(request.tokens)
        pace = self._paces[params.greedy, params.plain]
        pace.add(accepted, self._spent)
        self._draft_probs.calibration.keep(accepted)

    def release(self, request: Request) -> None:
        self._read.pop(request.id, None)


@dataclass(slots=True)
class Pace:
    """Tokens written in rounds with draft tokens, and their time, with decay."""

    written: float = 0.0
    spent: float = 0.0
    """In rounds of the same batch without draft tokens."""

    @property
    def pace(self) -> float:
        """Tokens in the time of a plain round, at least 1."""
        if not self.spent:
            return 1.0
        return max(1.0, self.written / self.spent)

    def add(self, accepted: int, spent: float) -> None:
        """Learn from one request's round."""
        self.written = C.memory * self.written + accepted + 1
        self.spent = C.memory * self.spent + spent
