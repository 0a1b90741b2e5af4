"""One drafter, rule and budget, shared by the requests that use them: propose, verify,
learn, and contain faults.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Iterator
from collections.abc import Sequence as List
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from itertools import count
from operator import ge
from time import perf_counter

import torch
from jaxtyping import Float
from torch import Tensor

from foreword.budget import DraftBudget, RoundResult
from foreword.draft import constrained
from foreword.draft.base import Drafter, first_chain
from foreword.draft.check import check_probs
from foreword.errors import named
from foreword.model import Mode, Model
from foreword.sampling.streams import NoiseStreams
from foreword.scheduler import ScheduledSequence
from foreword.trace import reason
from foreword.types import (
    Batch,
    Clock,
    Draft,
    DraftTree,
    Round,
    Scores,
    Sequence,
    Verdict,
)
from foreword.types.params import NODES
from foreword.types.round import Reason
from foreword.verify import Rule
from foreword.verify.verifier import Distributions, Verifier

FAULTS = 3
"""Faults, without `CLEAN` clean rounds in between, that pause a drafter for all
requests.
"""
CLEAN = 64
"""Rounds. Drafting rounds without a fault that reset the fault count."""
PAUSE, LONGEST = 256, 65_536
"""Rounds.

Length of the first and of the longest pause; each pause doubles the one before.
"""


@dataclass(slots=True)
class SubBatch:
    """The sequences of one round that write and share a speculator; `drafting` is false
    where drafting is off.
    """

    speculator: Speculator
    scheduled: list[ScheduledSequence]
    drafting: bool
    batch: Batch = field(init=False)
    draft: Draft = field(init=False)
    verdict: Verdict = field(init=False)
    budgets: list[int] = field(init=False)
    """Draft tokens allowed for each sequence."""
    proposed: Draft | None = None
    """The draft before the budget trimmed it; None if the drafter was not called or
    failed.
    """
    failed: str | None = None
    """The error of the drafter in this round."""
    reasons: list[Reason | None] = field(init=False)
    """Why nothing was drafted, for each sequence; None where something was."""
    distributions: Distributions = field(init=False)
    rounds: dict[int, Round] = field(default_factory=dict)
    """Traces, by row, of the sequences that ask for one."""
    depths: list[int] = field(init=False)
    """Depth of each tree as the drafter made it, without the text that a grammar
    forces.
    """
    clock: Clock = field(default_factory=Clock)


class Speculator:
    """One drafter, one rule and one budget policy, for every request that uses them.

    A drafter that raises or breaks its contract never fails or changes a request. A
    fault turns drafting off for its request. Repeated faults pause the drafter for all
    requests; it is tried again later with new ones. The first fault and each pause give
    a RuntimeWarning; `Sequence.undrafted` keeps the reason.
    """

    def __init__(
        self, target: Model, drafter: Drafter, rule: Rule, budget: DraftBudget
    ) -> None:
        """Raises ModelError if the drafter reads hidden states that the target does not
        expose.
        """
        if drafter.hidden_layers:
            target.check_hidden_states(drafter.hidden_layers)
        self.target = target
        self.drafter = drafter
        self.rule = rule
        self.budget = budget
        self.draws = NoiseStreams(
            target.vocab,
            shared=rule.shares_noise,
            lists=rule.lists,
            device=target.device,
        )
        self._verifier = Verifier(rule, self.draws)
        self.failed: str | None = drafter.missing
        """The last error of the drafter."""
        self._faults = 0
        self._clean = 0
        self._paused = math.inf if self.failed else 0
        self._pause, self._warned = PAUSE, False
        self._empty: dict[int, Draft] = {}

    def begin(self, scheduled: List[ScheduledSequence]) -> list[SubBatch]:
        """Return the sub-batches of the entries that write; the one with drafting on
        comes first.

        A request that runs during a pause stays without drafting: the drafter has
        missed some of its tokens.
        """
        if self._paused:
            self._paused -= 1
            for entry in scheduled:
                entry.sequence.undrafted = entry.sequence.undrafted or self.failed
        writing = [entry for entry in scheduled if entry.writes]
        on = [entry for entry in writing if entry.sequence.undrafted is None]
        off = [entry for entry in writing if entry.sequence.undrafted is not None]
        return [
            SubBatch(self, group, drafting)
            for drafting, group in ((True, on), (False, off))
            if group
        ]

    # ---- propose

    def propose(self, sub_batch: SubBatch, others: int) -> None:
        """Draft for the sub-batch; `others`: further sequences in the forward beside
        each of its sequences.
        """
        before = perf_counter()
        sequences = tuple(entry.sequence for entry in sub_batch.scheduled)
        stops = self.budget.stops if self.budget.chains else None
        sub_batch.batch = batch = Batch(
            sequences, self.draws, self._trees, context=self.target.context, stops=stops
        )
        sub_batch.budgets = [
            self._budget(batch, one, others) if sub_batch.drafting else 0
            for one in sequences
        ]
        sub_batch.draft = (
            self._draft(sub_batch)
            if any(sub_batch.budgets)
            else self._no_draft(len(sequences))
        )
        sub_batch.depths = [max(tree.depths) for tree in sub_batch.draft.trees]
        if sub_batch.drafting and self._may_draft and constrained.followed(sequences):
            sub_batch.draft = constrained.extended(sub_batch.draft, batch)
        trees = enumerate(sub_batch.draft.trees)
        sub_batch.reasons = [
            None if tree.tokens else reason(sub_batch, row) for row, tree in trees
        ]
        sub_batch.clock.propose = perf_counter() - before

    def _draft(self, sub_batch: SubBatch) -> Draft:
        # floor and pace take long to compute, so they are read only when something is
        # drafted
        batch = replace(sub_batch.batch, floor=self.budget.floor, pace=self.budget.pace)
        try:
            draft = sub_batch.proposed = self._checked_draft(batch, sub_batch.budgets)
            # dropping a sampled token by its value would bias the output
            if draft.probs is None:
                draft = self.budget.trim(draft)
        except Exception as error:  # noqa: BLE001 - a drafter's error must not fail the request
            sub_batch.failed = named(error)
            self._find_faulty(batch, sub_batch.budgets, error)
            sub_batch.budgets = [0] * len(batch)
            return self._no_draft(len(batch))
        if self._faults and draft.nodes:
            self._clean += 1
            if self._clean >= CLEAN:
                self._faults = self._clean = 0
        return draft

    def _checked_draft(self, batch: Batch, budgets: list[int]) -> Draft:
        draft = checked(self.drafter.propose(batch, budgets), budgets, self.target)
        if not (draft.chain or self._trees):
            draft = first_chain(draft)
        draft = draft.within([batch.reach(sequence) for sequence in batch.sequences])
        return constrained.accepted(draft, batch.sequences)

    def _find_faulty(self, batch: Batch, budgets: list[int], error: Exception) -> None:
        """Find the sequences at fault by drafting for each one separately; these drafts
        are discarded.
        """
        if len(batch) == 1:
            self.fault(error, batch.sequences[0])
            return
        faulty: list[tuple[Sequence, Exception]] = []
        for sequence, nodes in zip(batch.sequences, budgets, strict=True):
            try:
                if nodes:
                    self._checked_draft(replace(batch, sequences=(sequence,)), [nodes])
            except Exception as own_error:  # noqa: BLE001 - as above
                faulty.append((sequence, own_error))
        for sequence, own_error in faulty:
            self.fault(own_error, sequence, quiet=len(faulty) >= FAULTS)
        if not faulty:
            self.fault(error)

    @property
    def _may_draft(self) -> bool:
        return self.target.mode is not Mode.PLAIN and not self.budget.never

    @property
    def _trees(self) -> bool:
        return (
            self.rule.trees and self.target.mode is Mode.TREE and not self.budget.chains
        )

    def _no_draft(self, rows: int) -> Draft:
        if rows not in self._empty:
            self._empty[rows] = Draft([DraftTree()] * rows, device=self.target.device)
        return self._empty[rows]

    def _budget(self, batch: Batch, sequence: Sequence, others: int) -> int:
        """Return the draft tokens worth proposing.

        Near the end few can be accepted, but a tree may offer many.
        """
        reach = batch.reach(sequence)
        if not (self._may_draft and reach):
            return 0
        return max(
            0, min(self.budget.nodes(sequence, others), NODES if batch.trees else reach)
        )

    # ---- verify

    def verify(
        self, sub_batch: SubBatch, logits: list[Float[Tensor, "_ vocab"]]
    ) -> None:
        """Verify the sub-batch's draft, and let the drafter observe the verdict."""
        before = perf_counter()
        sub_batch.distributions = self._verifier.distributions(
            sub_batch.batch, sub_batch.draft, logits
        )
        sub_batch.verdict = self._verifier.verify(
            sub_batch.batch, sub_batch.draft, sub_batch.distributions
        )
        if sub_batch.drafting:
            with self.disable_on_error(
                sub_batch.batch.sequences[0] if len(sub_batch.batch) == 1 else None
            ):
                self.drafter.observe(
                    sub_batch.batch,
                    sub_batch.draft,
                    sub_batch.verdict,
                    Scores(tuple(logits)),
                )
        sub_batch.clock.verify = perf_counter() - before

    def on_hidden_states(
        self, sequence: Sequence, start: int, hidden: Float[Tensor, "tokens features"]
    ) -> None:
        """Pass the drafter the hidden states of committed tokens, from position `start`
        on.
        """
        if sequence.undrafted is None:
            with self.disable_on_error(sequence):
                self.drafter.on_hidden_states(sequence, start, hidden)

    # ---- learn

    def account(self, sub_batch: SubBatch, rows: int, reading: int) -> None:
        """Account for the sub-batch's round: its forward held `rows` tokens and
        `reading` prompt tokens in total.
        """
        if sub_batch.drafting:
            self.budget.on_timing(rows, sub_batch.clock, reading)
        drafted = sub_batch.drafting and any(sub_batch.budgets)
        several = zip(
            sub_batch.batch.sequences,
            sub_batch.draft.trees,
            sub_batch.verdict.kept,
            strict=True,
        )
        for row, (sequence, tree, path) in enumerate(several):
            sequence.stats.add(
                sub_batch.clock,
                len(tree),
                len(path),
                max(tree.depths),
                sub_batch.reasons[row],
            )
            if drafted:
                depth, clock = sub_batch.depths[row], sub_batch.clock
                accepted = min(len(path), depth)
                outcome = RoundResult(
                    sub_batch.budgets[row], depth, accepted, clock.propose, clock.total
                )
                self.budget.learn(sequence, outcome)

    def rest(self, took: float) -> None:
        """Let the drafter work between rounds; `took`: seconds of the last round."""
        if not self._paused:
            with self.disable_on_error():
                self.drafter.rest(took)

    def release(self, sequence: Sequence) -> None:
        """Free the state of a sequence that has ended."""
        self.draws.forget(sequence)
        self.budget.release(sequence)
        self.forget(sequence)

    def forget(self, sequence: Sequence) -> None:
        """Have the drafter forget a sequence that has ended, or that the target will
        read again.
        """
        with self.disable_on_error():
            self.drafter.release(sequence)

    # ---- faults

    @contextmanager
    def disable_on_error(self, sequence: Sequence | None = None) -> Iterator[None]:
        """Record an exception of the drafter as a fault, of `sequence` if given."""
        try:
            yield
        except Exception as error:  # noqa: BLE001 - a drafter's error must not fail the request
            self.fault(error, sequence)

    def fault(
        self, error: Exception, sequence: Sequence | None = None, *, quiet: bool = False
    ) -> None:
        """Turn drafting off for a sequence; after `FAULTS` faults in a row, pause it
        for all.
        """
        self.failed = named(error)
        if sequence is not None:
            sequence.undrafted = self.failed
        self._faults, self._clean = 0 if self._paused else self._faults + 1, 0
        if self._faults >= FAULTS:
            self._paused, self._pause = self._pause, min(2 * self._pause, LONGEST)
            self._faults = 0
            self._warn(
                f"the drafter failed {FAULTS} times and is off for all requests for "
                f"{self._paused} rounds"
            )
        elif not (self._warned or self._paused or quiet):
            self._warn(
                "the drafter failed and is off for "
                f"{'one request' if sequence else 'one round'}"
            )
        self._warned = True

    def _warn(self, event: str) -> None:
        message = f"{event}; the text is not affected, only slower. {self.failed}"
        warnings.warn(message, RuntimeWarning, stacklevel=6)


def checked(draft: Draft, budgets: list[int], target: Model) -> Draft:
    """Return a copy of the draft on the target's device. Raises ValueError if the draft
    breaks the contract.

    A copy, because the drafter may change its lists before the round is over.
    """
    trees = draft.trees
    if len(trees) != len(budgets):
        raise ValueError(
            f"cannot use this draft: it has {len(trees)} rows for {len(budgets)} "
            "sequences"
        )
    if any(len(tree.parents) != len(tree.tokens) for tree in trees):
        raise ValueError(
            "cannot use this draft: tokens and parents must have equal lengths"
        )
    if any(
        set(map(type, numbers)) - {int}
        for tree in trees
        for numbers in (tree.tokens, tree.parents)
    ):
        raise ValueError(
            "cannot use this draft: tokens and parents must be Python ints"
        )
    if any(len(tree) > most for tree, most in zip(trees, budgets, strict=True)):
        raise ValueError(
            f"cannot use this draft: it has {[len(tree) for tree in trees]} tokens, "
            f"the limit is {budgets}"
        )
    if any(
        not 0 <= min(tree.tokens) <= max(tree.tokens) < target.vocab
        for tree in trees
        if tree.tokens
    ):
        raise ValueError(
            "cannot use this draft: a token is outside the target's vocabulary of "
            f"{target.vocab}"
        )
    if any(
        min(tree.parents) < -1 or any(map(ge, tree.parents, count()))
        for tree in trees
        if tree.parents
    ):
        raise ValueError(
            "cannot use this draft: a node's parent must come before it, or be -1"
        )
    if draft.probs is None:
        return draft.copy(target.device)
    if draft.weighed and draft.nodes:
        raise ValueError(
            "cannot use this draft: sampled tokens must not carry probabilities. Pass "
            "one of the two"
        )
    shape = [len(budgets), draft.nodes, target.vocab]
    if list(draft.probs.shape) != shape:
        raise ValueError(
            f"cannot use this draft: probs must have shape {shape}, got "
            f"{list(draft.probs.shape)}"
        )
    check_probs(draft)
    return draft.copy(target.device)


def select_layers(
    states: Tensor, captured: tuple[int, ...], layers: tuple[int, ...]
) -> Tensor:
    """Select `layers`, in order, from the concatenated hidden states of the `captured`
    layers.
    """
    if captured == layers:
        return states
    size = states.shape[1] // len(captured)
    return torch.cat(
        [states[:, size * at : size * (at + 1)] for at in map(captured.index, layers)],
        dim=1,
    )
