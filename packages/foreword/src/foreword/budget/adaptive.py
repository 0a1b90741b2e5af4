"""The default budget: the number of draft tokens that maximizes tokens per second, from
measured costs and acceptance.

The count depends on past rounds alone, never on the draft tokens it applies to, so it
is exact under every rule. Draft tokens that were chosen, not drawn, may also be dropped
by their own probabilities (`trim`).
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from itertools import chain, islice, product

from foreword.budget.balance import Balance, Balances
from foreword.budget.base import DraftBudget, Measure, RoundResult
from foreword.budget.batch_gain import BatchGain
from foreword.budget.constants import C
from foreword.budget.costs import Costs, DraftingCost
from foreword.budget.kept import KeptPace
from foreword.budget.predictions import DraftProbabilities, largest
from foreword.budget.record import (
    AcceptanceRecord,
    Requested,
    Rest,
)
from foreword.estimators import OUTLIER, finite, running_mean
from foreword.types import Clock, Draft, DraftTree, Request


class AdaptiveBudget(DraftBudget):
    """Budget that maximizes tokens per second, and is 0 while speculation is slower
    than plain decoding.

    A chain of k draft tokens yields (1 + sum over j <= k of P(the first j are
    accepted)) tokens over the time of a round with k (Leviathan et al. 2023, section
    3.3, with a measured cost for every count instead of one ratio). Probabilities are
    per request, shrunk toward the mean of all requests sampled alike; costs are
    measured. If a drafter states probabilities, the likeliest draft tokens of the whole
    batch are kept while each earns more than its scoring costs (after arXiv 2607.05147,
    section on scheduling, and SMART/CaDDTree for trees).
    """

    summary = (
        "the most tokens per second, by measured costs and acceptance; 0 while "
        "drafting loses"
    )

    def __init__(
        self,
        cost: Mapping[int, float],
        costs: Costs | None = None,
    ) -> None:
        """`costs`: the table of a choice among methods, which decides whether this one
        pays (budget/choice.py), so that this policy only sets the number of tokens.
        """
        self._measured = cost
        self._alone = costs is None
        self.costs = costs or Costs(cost)
        self._drafting_costs = {plain: DraftingCost() for plain in (True, False)}
        """By whether requests are plain: filters make drafting several times slower."""
        self.drafting_cost = self._drafting_costs[True]
        """The entry for the request of the last `nodes` call."""
        self._overhead = self._plain_overhead = 0.0
        """Seconds of verify and commit per request, with and without draft tokens."""
        self._overall = {
            kind: AcceptanceRecord() for kind in product((True, False), repeat=2)
        }
        """By (greedy, plain): greedy text is easier to predict, filters take longer."""
        self._current = self._overall[True, True]
        """The entry for the request of the last `nodes` call."""
        self._balances = Balances()
        self._balance = Balance()
        """The entry for the request of the last `nodes` call."""
        self._round_balances: list[Balance] = []
        """The entries of this round."""
        self._records: dict[int, AcceptanceRecord] = {}
        self._draft_probs = DraftProbabilities(largest(cost))
        self._round_trees: list[DraftTree] = []
        """Drafts of this round that state probabilities, by request."""
        self._plans: dict[tuple[bool, bool], tuple[float, float]] = {}
        """By kind of request, in this round: the result of `BatchGain.best`."""
        self._never_pays: dict[DraftingCost, bool] = {}
        """Whether no draft could pay in this round; empty until checked."""
        self._requested = Requested()
        """By the requests of this round."""
        self._since = self._idle = 0
        """Rounds with draft tokens since one without; rounds without any in a row."""
        self._rounds = 0
        """Rounds so far."""
        self._rest = Rest()
        self._batch_size = 1
        """Requests in this round."""
        self._batch: BatchGain | None = None
        """Costs of this round's requests; None until computed."""
        self._plain_seconds = 0.0
        """Estimated, of the last round without speculation, by its own timing."""
        self._extra_seconds = self._catch_up_seconds = 0.0
        """Extra seconds of it per drafting request; how many of them it read."""
        self._length = 0.0
        """Mean tokens of an answer; 0 before any ended."""

    @classmethod
    def from_measure(cls, measure: Measure) -> AdaptiveBudget:
        return cls(measure())

    @property
    def shared_costs(self) -> Costs:
        return self.costs

    def anew(self) -> AdaptiveBudget:
        return AdaptiveBudget(self._measured, self.costs)

    def recall(self, kept: KeptPace) -> None:
        if self._alone:
            self._balances.kept = kept

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
        return self._balance.pace / self._batch_gain().plain_seconds

    def _batch_gain(self) -> BatchGain:
        """Return the costs of this round's batch.

        Plain overhead defaults to that with draft tokens until measured.
        """
        if self._batch is None:
            self._batch = BatchGain(
                self._batch_size, self.costs, self.overhead, self._overhead
            )
        return self._batch

    @property
    def overhead(self) -> float:
        """Seconds of verify and commit per request, as in rounds without draft tokens
        once there was one.
        """
        return self._plain_overhead or self._overhead

    def rests(self, requests: Sequence[Request]) -> bool:
        return self._rest.covers(requests)

    def nodes(self, request: Request, others: int) -> int:
        record = self._record(request)
        if self._batch_size != others + 1:
            self._batch_size = others + 1
            self._forget_round()
        self._rest.interrupt(request, others)
        self._current = self._overall[record.greedy, record.plain]
        self._balance = balance = self._balance_of(record)
        if not balance.sequences:
            self._round_balances.append(balance)
        balance.sequences += 1
        self.drafting_cost = self._drafting_costs[record.plain]
        count = self._choose(request, record)
        if count:
            requested = self._requested
            requested.sequences += 1
            requested.filtered |= not record.plain
            requested.unread += record.unread(request)
        return count

    def trim(self, draft: Draft) -> Draft:
        stated = self._draft_probs
        self._round_trees = []
        if not (draft.nodes and draft.weighed):
            stated.levels = 0 if stated.available else None
            if stated.available and not draft.nodes:
                self._round_trees = list(draft.trees)
            stated.calibration.promise(0.0)
            return draft
        self._round_trees = list(draft.trees)
        rows = [tree.probabilities for tree in draft.trees]
        probabilities = sorted(chain.from_iterable(rows), reverse=True)
        stated.levels = sum(max(tree.depths) for tree in draft.trees)
        # all are drafted already
        spent = self.drafting_cost.seconds(stated.levels)
        spent += len(rows) * self._overhead
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

    def on_timing(
        self,
        rows: int,
        clock: Clock,
        reading: int = 0,
    ) -> None:
        self._rounds += 1
        if not finite(clock.total):
            clock = Clock()
        if self._rest.passed(clock.total):
            self._idle += 1
            return
        # gains offset losses within a round; tries lose a share of the other rounds
        drafted = self._requested.sequences > 0
        allowed = 0.0
        if not drafted:
            seconds = self._rest.taken() + clock.total
            allowed = C.share * seconds / self._batch_size
        for balance in self._round_balances:
            balance.settle(allowed)
        self._round_balances = []
        self._idle = 0 if drafted else self._idle + 1
        if self._idle > 1:
            self._rest.left = C.rest
        batch = self._batch_gain()
        if reading:
            # The forward also read a prompt, so its time says little: use the table.
            size = self._batch_size
            more = self.costs.seconds(rows + reading)
            scoring = more - self.costs.seconds(size + reading)
            self._plain_seconds = batch.plain_seconds
            longer = clock.propose + max(scoring, 0.0)
        else:
            longer = self._extra(rows, clock)
        self._account(clock, longer, rows)
        self._forget_round()

    def _extra(self, rows: int, clock: Clock) -> float:
        """Learn the costs of a round that read no prompt; return its extra seconds."""
        after = clock.verify + clock.commit
        each = after / self._batch_size
        if self._requested.sequences:
            self._overhead = running_mean(self._overhead, each)
        else:
            overhead = running_mean(self._plain_overhead, each)
            self._plain_overhead = overhead
        size = self._batch_size
        ratio = self.costs.seconds(size) / self.costs.seconds(rows)
        overhead = min(size * self.overhead, after)
        self._plain_seconds = clock.score * ratio + overhead
        self.costs.correct(rows, clock.score)
        return clock.total - self._plain_seconds

    def _forget_round(self) -> None:
        """Drop what was computed for the requests of one round."""
        self._plans = {}
        self._never_pays = {}
        self._batch = None

    def _account(self, clock: Clock, longer: float, rows: int) -> None:
        """Record the cost of drafting in the last round, `longer` extra seconds; one
        slow round has little effect.
        """
        requested = self._requested
        if not requested.sequences:
            self._extra_seconds = self._catch_up_seconds = 0.0
            self._since = 0
            return
        cost = self.drafting_cost = self._drafting_costs[not requested.filtered]
        caught_up = cost.catch_up(requested.unread)
        propose = clock.propose
        drafted = rows - self._batch_size
        levels = self._draft_probs.levels
        made = drafted if levels is None else levels
        if not cost.measured:
            # the first draft of a process takes longer than any later one
            longer -= propose
        elif not requested.unread or cost.catch_up_measured:
            expected = cost.seconds(made) + caught_up
            propose = min(propose, OUTLIER * expected)
            size = self._batch_size
            scoring = drafted * self.costs.slope(size, max(drafted, 1))
            after = size * self._overhead
            longer = min(longer, propose + OUTLIER * (scoring + after))
        self._extra_seconds = longer / requested.sequences
        reading = min(caught_up, max(longer, 0.0))
        self._catch_up_seconds = reading / requested.sequences
        cost.learn(made, requested.unread, propose)
        self._since += 1
        self._draft_probs.levels = None
        self._requested = Requested()

    def learn(self, request: Request, outcome: RoundResult) -> None:
        tree = self._round_trees.pop(0) if self._round_trees else None
        if not (outcome.asked and finite(outcome.seconds)):
            return
        record = self._record(request)
        overall = self._overall[record.greedy, record.plain]
        balance = self._balance_of(record)
        record.read = len(request.tokens)
        token_seconds = self._plain_seconds / self._batch_size
        gained = outcome.accepted * token_seconds - self._extra_seconds
        if finite(gained):
            # Capped: one stall of the machine must not end drafting for hours.
            lost = min(balance.lost - gained, C.longest * self._plain_seconds)
            balance.lost = max(lost, -C.saved * self._plain_seconds)
        drafting = self._extra_seconds - self._catch_up_seconds
        spent = 1.0 + drafting / max(token_seconds, 1e-9)
        for counts in (record, overall):
            counts.add(outcome, tree, weighed=self._draft_probs.available)
        balance.add(outcome.accepted, spent)
        self._draft_probs.calibration.keep(outcome.accepted)
        if gained > 0:
            record.paused_until = 0
            record.backoff = C.backoff

    def _record(self, request: Request) -> AcceptanceRecord:
        """Return the record of a request; a new one at first."""
        record = self._records.get(request.id)
        if record is None:
            params = request.params
            record = AcceptanceRecord(greedy=params.greedy, plain=params.plain)
            self._records[request.id] = record
        return record

    def _balance_of(self, record: AcceptanceRecord) -> Balance:
        sort = (record.greedy, record.plain)
        return self._balances.of(sort, self._batch_size, self._loss_budget)

    def _loss_budget(self) -> float:
        """Return the seconds that trying out may lose."""
        return C.loss_budget * self._batch_gain().alone_seconds

    def release(self, request: Request) -> None:
        record = self._records.pop(request.id, None)
        if record is not None:
            self._length = running_mean(self._length, request.produced)
            self._balances.keep((record.greedy, record.plain), self._batch_size)

    def _choose(self, request: Request, record: AcceptanceRecord) -> int:
        """Return the budget of this request: as many draft tokens as pay, or a few to
        measure whether they would.
        """
        if record.paused_until > self._rounds or self._since >= C.probe_every:
            return 0
        batch = self._batch_gain()
        cost = self.drafting_cost
        lost = self._balance.lost if self._alone else 0.0
        if cost not in self._never_pays:
            self._never_pays[cost] = batch.never_pays(cost)
        if self._never_pays[cost] and lost > 0:
            return 0
        unread = record.unread(request) if self._alone else 0
        loss_budget = self._loss_budget()
        if lost > loss_budget and (unread or self._balance.is_losing):
            return 0
        count, gain = self._best(request, record, batch)
        reading = cost.catch_up(unread)
        if count and gain * self._left(request) > reading:
            # one at a time until drafting and catching up are measured
            unknown = not cost.measured or (unread and not cost.catch_up_measured)
            return 0 if unknown and self._requested.sequences else count
        # A loss now need not last: try once, then pause, longer each time.
        tried = cost.seconds(max(count, 1)) + reading
        if self._requested.probing or 0 < lost > loss_budget - tried:
            return 0
        self._requested.probing = True
        record.back_off(self._rounds)
        return max(count, 1)

    def _left(self, request: Request) -> float:
        """Return the expected rounds to go, by the mean length of an answer."""
        left = request.room
        if self._length:
            written = request.produced
            left = max(self._length - request.produced, written, 1.0)
        return min(left, request.room) / self._balance.pace

    def _best(
        self, request: Request, record: AcceptanceRecord, batch: BatchGain
    ) -> tuple[int, float]:
        """Return the draft tokens that maximize tokens per second, and the seconds this
        request gains per round.
        """
        stated = self._draft_probs
        if not stated.available:
            most = C.chain if self.drafting_cost.measured else C.unpriced
            depths = islice(record.reached(self._current), most)
            return batch.best_chain(self.drafting_cost, depths)
        kind = (record.greedy, record.plain)
        overall = self._current.predicted
        if not overall.rounds:
            return stated.most, 0.0 if self._requested.sequences else math.inf
        if kind not in self._plans:
            share = stated.calibration.share
            self._plans[kind] = batch.best(self.drafting_cost, overall, share)
        earned, longer = self._plans[kind]
        fixed = batch.added(self.drafting_cost, 0.0, 0.0)
        won = earned * batch.token_seconds - longer + fixed
        # where fewer are likely, fewer are drafted too
        ratio = record.predicted.relative_to(overall)
        return stated.most, ratio * won - fixed
