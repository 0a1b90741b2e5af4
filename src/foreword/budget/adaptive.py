"""The default budget: the number of draft tokens that maximizes tokens per second, from
measured costs and acceptance.

The count depends on past rounds alone, never on the draft tokens it applies to, so it
is exact under every rule. Draft tokens that were chosen, not drawn, may also be dropped
by their own probabilities (`trim`).
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Mapping
from itertools import product

from foreword.budget.base import DraftBudget, Measure, RoundResult
from foreword.budget.batch_gain import BatchGain
from foreword.budget.costs import Costs
from foreword.budget.drafting_cost import DraftingCost
from foreword.budget.predictions import DraftProbabilities, largest
from foreword.budget.record import (
    BACKOFF,
    LIMIT,
    LONGEST,
    LOSS_BUDGET,
    SHARE,
    AcceptanceRecord,
    Balance,
)
from foreword.estimators import finite, running_mean
from foreword.types import Clock, Draft, Sequence

UNPRICED = 4
"""Tokens. Longest chain before the cost of drafting is measured."""
OPTIMISM = 0.7
"""Prior acceptance probability of the first draft token."""
FLUKE = 4.0
"""Times its expected cost.

Cap on one round: another process may have used the processor.
"""
HIGHEST = 0.5
"""Highest floor.

A higher one could stop all drafting, so nothing would be learned that lowers it.
"""
PROBE_EVERY = 64
"""Rounds with draft tokens before one without measures plain decoding again."""
MEASURE_EVERY = 8
"""Rounds without draft tokens of which one is measured: measuring takes a hundredth of
a round of few sequences.
"""


class AdaptiveBudget(DraftBudget):
    """Budget that maximizes tokens per second, and is 0 while speculation is slower
    than plain decoding.

    A chain of k draft tokens yields (1 + sum over j <= k of P(the first j are
    accepted)) tokens over the time of a round with k (Leviathan et al. 2023, section
    3.3, with a measured cost for every count instead of one ratio). Probabilities are
    per sequence, shrunk toward those of all sequences sampled alike; costs are
    measured. If a drafter states probabilities, the likeliest draft tokens of the whole
    batch are kept while each earns more than its scoring costs (after arXiv 2607.05147,
    section on scheduling, and SMART/CaDDTree for trees).
    """

    summary = (
        "the most tokens per second, by measured costs and acceptance; 0 while "
        "drafting loses"
    )

    def __init__(self, cost: Mapping[int, float]) -> None:
        self.costs = Costs(cost)
        self._drafting_costs = {plain: DraftingCost() for plain in (True, False)}
        """Cost of drafting, for plain requests and for those with filters, which take
        several times longer.
        """
        self.drafting_cost = self._drafting_costs[True]
        """The entry for the sequence of the last `nodes` call."""
        self._overhead = self._plain_overhead = 0.0
        """Seconds of verify and commit per sequence, with and without draft tokens."""
        self._overall = {
            kind: AcceptanceRecord() for kind in product((True, False), repeat=2)
        }
        """Global statistics by (greedy, plain): greedy text is easier to predict, and
        drafting with filters, penalties and the like takes several times longer, which
        other requests must not pay."""
        self._current = self._overall[True, True]
        """The entry for the sequence of the last `nodes` call."""
        self._balances: defaultdict[tuple[bool, bool, int], Balance] = defaultdict(
            Balance
        )
        """Gains and losses by (greedy, plain, bits of the batch size): what loses in a
        batch may pay alone.
        """
        self._balance, self._round_balances = Balance(), list[Balance]()
        """The entry for the sequence of the last `nodes` call, and the entries of this
        round.
        """
        self._records: dict[int, AcceptanceRecord] = {}
        self._draft_probs = DraftProbabilities(largest(cost))
        self._round_probs: list[list[float]] = []
        """Stated probabilities of this round, by sequence."""
        self._plans: dict[tuple[bool, bool], tuple[float, float]] = {}
        """Expected tokens and extra seconds of this round, by kind of sequence; see
        `BatchGain.best`.
        """
        self._never_pays: dict[DraftingCost, bool] = {}
        """Whether no draft could pay in this round; empty until checked."""
        self._requested = self._unread = self._drafted_for = 0
        """Draft tokens requested in this round, tokens to read before, and the
        sequences that requested them.
        """
        self._probing = self._filtered = False
        """One of these sequences only tries drafting out; one has filters or
        the like.
        """
        self._since = self._idle = 0
        """Rounds with draft tokens since the last one without any; rounds without any
        in a row.
        """
        self._batch_size = 1
        """Sequences in this round."""
        self._batch: BatchGain | None = None
        """Costs of this round's sequences; None until computed."""
        self._plain_seconds = self._extra_seconds = self._catch_up_seconds = 0.0
        """Estimated duration of the last round without speculation, by its own timing
        (tables may be outdated); extra seconds per drafting sequence; and how many of
        those went into reading."""
        self._length = 0.0
        """Mean tokens of an answer; 0 before any ended."""

    @classmethod
    def made(cls, measure: Measure) -> AdaptiveBudget:
        return cls(measure())

    @property
    def floor(self) -> float:
        """Probability at which a draft token earns its drafting and half of its
        scoring; `trim` decides the rest.
        """
        drafts = self._draft_probs
        if not drafts.available:
            return 0.0
        scoring = 0.5 * self.costs.slope(self._batch_size, drafts.most)
        return min(
            self._batch_size
            * self.pace
            * (scoring + drafts.cost.each)
            / drafts.calibration.share,
            HIGHEST,
        )

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
        """Seconds of verify and commit per sequence, as in rounds without draft tokens
        once there was one.
        """
        return self._plain_overhead or self._overhead

    def nodes(self, sequence: Sequence, others: int) -> int:
        record = self._records.get(sequence.id) or self._record(sequence)
        if self._batch_size != others + 1:
            self._batch_size = others + 1
            self._forget_round()
        self._current = self._overall[record.greedy, record.plain]
        self._balance = balance = self._balance_of(record)
        if not balance.sequences:
            self._round_balances.append(balance)
        balance.sequences += 1
        self.drafting_cost = self._drafting_costs[record.plain]
        count = self._choose(sequence, record)
        if count:
            self._requested = self._requested + count
            self._drafted_for = self._drafted_for + 1
            self._filtered |= not record.plain
            self._unread += record.unread(sequence)
        return count

    def trim(self, draft: Draft) -> Draft:
        rows = [tree.probabilities for tree in draft.trees]
        if not (draft.nodes and draft.weighed):
            self._draft_probs.count = 0 if self._draft_probs.available else None
            self._round_probs = (
                rows if self._draft_probs.available and not draft.nodes else []
            )
            self._draft_probs.calibration.promise(0.0)
            return draft
        self._round_probs = rows
        probabilities = sorted(
            (probability for row in rows for probability in row), reverse=True
        )
        self._draft_probs.count = len(probabilities)
        count = self._draft_probs.paying(
            probabilities, len(rows), self.costs, self._overhead
        )
        least = probabilities[count - 1] if count else 1.1
        kept = [sum(probability >= least for probability in row) for row in rows]
        self._draft_probs.settle(kept, sum(probabilities[:count]))
        if kept == [len(row) for row in rows]:
            return draft
        return Draft(
            tree.pruned(range(count))
            for tree, count in zip(draft.trees, kept, strict=True)
        )

    def on_timing(self, rows: int, clock: Clock, reading: int = 0) -> None:
        if not finite(clock.total):
            clock = Clock()
        # Within a round, one sequence's loss offsets another's gain; tries may lose a
        # share of the other rounds.
        allowed = 0.0 if self._drafted_for else SHARE * clock.total / self._batch_size
        for balance in self._round_balances:
            balance.settle(allowed)
        self._round_balances = []
        self._idle = 0 if self._drafted_for else self._idle + 1
        if self._idle % MEASURE_EVERY > 1:
            return
        after, batch = clock.verify + clock.commit, self._batch_gain()
        if reading:
            scoring = self.costs.seconds(rows + reading) - self.costs.seconds(
                self._batch_size + reading
            )
            self._plain_seconds = batch.plain_seconds
            longer = clock.propose + max(scoring, 0.0)
        else:
            if self._drafted_for:
                self._overhead = running_mean(self._overhead, after / self._batch_size)
            else:
                self._plain_overhead = running_mean(
                    self._plain_overhead, after / self._batch_size
                )
            ratio = self.costs.seconds(self._batch_size) / self.costs.seconds(rows)
            overhead = min(self._batch_size * self.overhead, after)
            self._plain_seconds = clock.score * ratio + overhead
            longer = clock.total - self._plain_seconds
            self.costs.correct(rows, clock.score)
        self._account(clock, longer, rows)
        self._forget_round()

    def _forget_round(self) -> None:
        """Drop what was computed for the sequences of one round."""
        self._plans = {}
        self._never_pays = {}
        self._batch = None

    def _account(self, clock: Clock, longer: float, rows: int) -> None:
        """Record the cost of drafting in the last round, `longer` extra seconds; one
        slow round has little effect.
        """
        if not self._drafted_for:
            self._extra_seconds = self._catch_up_seconds = 0.0
            self._since = 0
            return
        self.drafting_cost = self._drafting_costs[not self._filtered]
        caught_up, propose = self.drafting_cost.catch_up(self._unread), clock.propose
        if not self.drafting_cost.measured:
            # the first draft of a process takes longer than any later one
            longer -= propose
        elif not self._unread or self.drafting_cost.catch_up_measured:
            propose = min(
                propose,
                FLUKE * (self.drafting_cost.seconds(self._requested) + caught_up),
            )
            scoring = self.costs.slope(
                self._batch_size, max(rows - self._batch_size, 1)
            ) * (rows - self._batch_size)
            longer = min(
                longer, propose + FLUKE * (scoring + self._batch_size * self._overhead)
            )
            if self._draft_probs.count is not None:
                self._draft_probs.cost.learn(
                    self._draft_probs.count, max(propose - caught_up, 0.0)
                )
        self._extra_seconds = longer / self._drafted_for
        self._catch_up_seconds = min(caught_up, max(longer, 0.0)) / self._drafted_for
        self.drafting_cost.learn(self._requested, self._unread, propose)
        self._since, self._draft_probs.count = self._since + 1, None
        self._requested = self._unread = self._drafted_for = 0
        self._probing = self._filtered = False

    def learn(self, sequence: Sequence, outcome: RoundResult) -> None:
        probabilities = self._round_probs.pop(0) if self._round_probs else None
        if not (outcome.asked and finite(outcome.seconds)):
            return
        record = self._records.get(sequence.id) or self._record(sequence)
        overall = self._overall[record.greedy, record.plain]
        balance = self._balance_of(record)
        record.read = len(sequence.tokens)
        token_seconds = self._plain_seconds / self._batch_size
        gained = outcome.accepted * token_seconds - self._extra_seconds
        if finite(gained):
            # The cap keeps one stall of the process or machine from disabling
            # speculation for hours.
            balance.lost = min(balance.lost - gained, LONGEST * self._plain_seconds)
        spent = 1.0 + (self._extra_seconds - self._catch_up_seconds) / max(
            token_seconds, 1e-9
        )
        for one in (record, overall):
            one.add(outcome, probabilities, weighed=self._draft_probs.available)
        balance.add(outcome.accepted, spent)
        self._draft_probs.calibration.keep(outcome.accepted)
        if gained > 0:
            record.pause, record.backoff = 0, BACKOFF

    def _record(self, sequence: Sequence) -> AcceptanceRecord:
        """Add a new record for a sequence that has none."""
        params = sequence.params
        return self._records.setdefault(
            sequence.id, AcceptanceRecord(greedy=params.greedy, plain=params.plain)
        )

    def _balance_of(self, record: AcceptanceRecord) -> Balance:
        return self._balances[
            record.greedy, record.plain, self._batch_size.bit_length()
        ]

    def release(self, sequence: Sequence) -> None:
        if self._records.pop(sequence.id, None) is not None:
            self._length = running_mean(self._length, float(sequence.produced))

    def _choose(self, sequence: Sequence, record: AcceptanceRecord) -> int:
        """Return the budget of this sequence: as many draft tokens as pay, or a few to
        measure whether they would.
        """
        record.pause = max(record.pause - 1, 0)
        if record.pause or self._since >= PROBE_EVERY:
            return 0
        batch = self._batch_gain()
        if self.drafting_cost not in self._never_pays:
            self._never_pays[self.drafting_cost] = batch.never_pays(self.drafting_cost)
        if self._never_pays[self.drafting_cost] and self._balance.lost > 0:
            return 0
        unread, loss_budget = record.unread(sequence), LOSS_BUDGET * batch.alone_seconds
        if self._balance.lost > loss_budget and (unread or self._balance.is_losing):
            return 0
        count, gain = self._best(sequence, record, batch)
        reading = self.drafting_cost.catch_up(unread)
        if count and gain * self._left(sequence) > reading:
            # One sequence at a time until the cost of drafting, and of catching up, is
            # measured.
            alone = not self.drafting_cost.measured or (
                unread and not self.drafting_cost.catch_up_measured
            )
            return 0 if alone and self._drafted_for else count
        # A loss now need not last: try once, then pause, longer each time.
        cost = self.drafting_cost.seconds(max(count, 1)) + reading
        if self._probing or 0 < self._balance.lost > loss_budget - cost:
            return 0
        self._probing = True
        record.back_off()
        return max(count, 1)

    def _left(self, sequence: Sequence) -> float:
        """Return the expected remaining rounds: from the mean answer length, or as many
        as so far, within its room.
        """
        left = (
            max(self._length - sequence.produced, float(sequence.produced), 1.0)
            if self._length
            else sequence.room
        )
        return min(left, sequence.room) / self._balance.pace

    def _best(
        self, sequence: Sequence, record: AcceptanceRecord, batch: BatchGain
    ) -> tuple[int, float]:
        """Return the draft tokens that maximize tokens per second, and the seconds this
        sequence gains per round.
        """
        if not self._draft_probs.available:
            return self._chain(record, batch)
        kind, overall = (record.greedy, record.plain), self._current.predicted
        if not overall.rounds:
            return self._draft_probs.most, math.inf if not self._drafted_for else 0.0
        if kind not in self._plans:
            share = self._draft_probs.calibration.share
            self._plans[kind] = batch.best(
                self.drafting_cost, overall, share, self._draft_probs.most
            )
        earned, longer = self._plans[kind]
        gain = (
            record.predicted.relative_to(overall) * earned * batch.token_seconds
            - longer
        )
        return self._draft_probs.most, gain

    def _chain(self, record: AcceptanceRecord, batch: BatchGain) -> tuple[int, float]:
        """Return the same as `_best` for a chain whose drafter states no
        probabilities.
        """
        best = 0
        gain = 0.0
        plain_seconds = batch.plain_seconds
        fastest = 1.0 / batch.plain_seconds
        earned = 0.0
        reached = 1.0
        prior = OPTIMISM
        for depth in range(LIMIT if self.drafting_cost.measured else UNPRICED):
            # The sequence's own rounds weigh most, then global ones; an untried depth
            # inherits the one before.
            prior = (self._current.kept[depth] + 2 * prior) / (
                self._current.scored[depth] + 2
            )
            reached *= (record.kept[depth] + 2 * prior) / (record.scored[depth] + 2)
            earned += reached
            longer = batch.added(self.drafting_cost, 1.0 + depth, 1.0 + depth)
            rate = (1.0 + earned) / (plain_seconds + batch.sequences * longer)
            if rate > fastest:
                best = 1 + depth
                gain = earned * batch.token_seconds - longer
                fastest = rate
        return best, gain
