"""One drafter, rule and budget of the requests that use them: propose and verify."""

from collections.abc import Sequence
from dataclasses import replace
from time import perf_counter

import torch
from jaxtyping import Float
from torch import Tensor

from foreword.budget import DraftBudget, StoppingBudget
from foreword.budget.kept import KeptStates
from foreword.draft.base import Drafter, first_chain
from foreword.draft.check import checked
from foreword.draft.none import NoDrafter
from foreword.engine.failures import FAULTS, Failures
from foreword.engine.scheduler import ScheduledRequest
from foreword.engine.sub_batch import SubBatch
from foreword.errors import named
from foreword.model import Mode, Model, machine
from foreword.sampling.streams import NoiseStreams
from foreword.types import (
    Batch,
    Draft,
    DraftTree,
    Request,
    Scores,
    Verdict,
)
from foreword.types.params import NODES
from foreword.types.round import Reason
from foreword.verify import Rule
from foreword.verify.verifier import Verifier


def kept_states(target: Model) -> KeptStates:
    """Return what is kept of methods for a target on this machine."""
    return KeptStates.of({**machine(), **target.speed_key})


class Speculator:
    """One drafter, one rule and one budget policy, for every request that uses them.

    A drafter that raises or breaks its contract never fails or changes a request
    (failures.py).
    """

    def __init__(
        self, target: Model, drafter: Drafter, rule: Rule, budget: DraftBudget
    ) -> None:
        """Raises ModelError if the drafter reads hidden states that are not exposed."""
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
        self.verifier = Verifier(rule, self.draws)
        self.failures = Failures(drafter)
        self._empty: dict[int, Draft] = {}
        self._stops = budget.stops if isinstance(budget, StoppingBudget) else None
        # most do nothing then, and a guarded call takes a microsecond of each round
        self._works_between = type(drafter).rest is not Drafter.rest

    @property
    def failed(self) -> str | None:
        """The last error of the drafter."""
        return self.failures.last

    def begin(self, scheduled: Sequence[ScheduledRequest]) -> list[SubBatch]:
        """Return the sub-batches of the entries that write; the one with drafting on
        comes first.

        A request that runs during a pause stays without drafting: the drafter has
        missed some of its tokens.
        """
        if self.failures.is_paused:
            self.failures.count_down()
            for entry in scheduled:
                self.failures.turn_off(entry.request)
        writing = [entry for entry in scheduled if entry.writes]
        is_off = self.failures.is_off
        on = [entry for entry in writing if not is_off(entry.request)]
        off = [entry for entry in writing if is_off(entry.request)]
        return [
            SubBatch(self, group, drafting)
            for drafting, group in ((True, on), (False, off))
            if group
        ]

    # ---- propose

    def propose(self, sub_batch: SubBatch, others: int) -> None:
        """Draft for the sub-batch; `others`: requests beside each in the forward."""
        before = perf_counter()
        requests = tuple(entry.request for entry in sub_batch.scheduled)
        sub_batch.batch = batch = Batch(
            requests,
            self.draws,
            self._trees,
            context=self.target.context,
            stops=self._stops,
        )
        if sub_batch.drafting:
            sub_batch.budgets = [self._budget(batch, one, others) for one in requests]
        else:
            sub_batch.budgets = [0] * len(requests)
        sub_batch.draft = (
            self._draft(sub_batch)
            if any(sub_batch.budgets)
            else self._no_draft(len(requests))
        )
        sub_batch.depths = [max(tree.depths) for tree in sub_batch.draft.trees]
        if sub_batch.drafting and self._may_draft and _follow_grammars(requests):
            from foreword.draft import constrained  # which few requests need

            sub_batch.draft = constrained.extended(sub_batch.draft, batch)
        sub_batch.reasons = [
            None if tree.tokens else self._reason(sub_batch, row)
            for row, tree in enumerate(sub_batch.draft.trees)
        ]
        sub_batch.clock.propose = perf_counter() - before

    def _draft(self, sub_batch: SubBatch) -> Draft:
        # takes long, so only when something is drafted
        batch = self.budget.priced(sub_batch.batch)
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
        if draft.nodes:
            self.failures.count_clean()
        return draft

    def _checked_draft(self, batch: Batch, budgets: list[int]) -> Draft:
        draft = checked(self.drafter.propose(batch, budgets), budgets, self.target)
        if not (draft.chain or self._trees):
            draft = first_chain(draft)
        reach = [batch.reach(request) for request in batch.requests]
        draft = draft.within(reach)
        if not _follow_grammars(batch.requests):
            return draft
        from foreword.draft import constrained

        return constrained.accepted(draft, batch.requests)

    def _find_faulty(self, batch: Batch, budgets: list[int], error: Exception) -> None:
        """Find the requests at fault by drafting for each one; drop these drafts."""
        if len(batch) == 1:
            self.failures.record(error, batch.requests[0])
            return
        faulty: list[tuple[Request, Exception]] = []
        for request, nodes in zip(batch.requests, budgets, strict=True):
            try:
                if nodes:
                    self._checked_draft(replace(batch, requests=(request,)), [nodes])
            except Exception as own_error:  # noqa: BLE001 - as above
                faulty.append((request, own_error))
        for request, own_error in faulty:
            self.failures.record(own_error, request, quiet=len(faulty) >= FAULTS)
        if not faulty:
            self.failures.record(error)

    @property
    def _may_draft(self) -> bool:
        return self.target.mode is not Mode.PLAIN and not self.budget.never

    @property
    def _trees(self) -> bool:
        return self.rule.trees and self.target.mode is Mode.TREE and self._stops is None

    def _no_draft(self, rows: int) -> Draft:
        if rows not in self._empty:
            self._empty[rows] = Draft([DraftTree()] * rows, device=self.target.device)
        return self._empty[rows]

    def _budget(self, batch: Batch, request: Request, others: int) -> int:
        """Return the draft tokens worth proposing.

        Near the end few can be accepted, but a tree may offer many.
        """
        reach = batch.reach(request)
        if not (self._may_draft and reach):
            return 0
        return max(
            0, min(self.budget.nodes(request, others), NODES if batch.trees else reach)
        )

    def _reason(self, sub_batch: SubBatch, row: int) -> Reason:
        """Return why nothing was drafted for a request, for its statistics."""
        request = sub_batch.batch.requests[row]
        proposed = sub_batch.proposed
        if self.failures.is_off(request) or sub_batch.failed:
            return "failed"
        if isinstance(self.drafter, NoDrafter):
            return "method"
        if self.target.mode is Mode.PLAIN:
            return "target"
        if not sub_batch.batch.reach(request):
            return "last-token"
        if not sub_batch.budgets[row]:
            return "budget"
        return "dropped" if proposed and proposed.trees[row].tokens else "no-match"

    def stays_plain(self, request: Request) -> bool:
        """Whether the next round of a request, too, will draft nothing."""
        return isinstance(self.drafter, NoDrafter) or not self._may_draft

    # ---- verify

    def verify(
        self, sub_batch: SubBatch, logits: list[Float[Tensor, "_ vocab"]]
    ) -> None:
        """Verify the sub-batch's draft, and let the drafter observe the verdict."""
        before = perf_counter()
        sub_batch.distributions = self.verifier.distributions(
            sub_batch.batch, sub_batch.draft, logits
        )
        drawn = sub_batch.drawn
        sub_batch.verdict = (
            self.verifier.verify(
                sub_batch.batch, sub_batch.draft, sub_batch.distributions
            )
            if drawn is None
            else Verdict([[]] * len(drawn), drawn, 0)
        )
        if sub_batch.drafting:
            # not `contained`, which takes a microsecond of each round
            try:
                self.drafter.observe(
                    sub_batch.batch,
                    sub_batch.draft,
                    sub_batch.verdict,
                    Scores(tuple(logits)),
                )
            except Exception as error:  # noqa: BLE001 - as above
                first, *others = sub_batch.batch.requests
                self.failures.record(error, None if others else first)
        sub_batch.clock.verify = perf_counter() - before

    def choice_of(self, request: Request) -> tuple[str, dict[str, float]]:
        """Return `method` and `speeds` of the round of a request that is traced."""
        return "", {}

    def settle(
        self, sub_batch: SubBatch, wrote: int, drafted: int, reading: int
    ) -> None:
        """Learn from a round that is over; a speculator of one method learns nothing.

        Its forward held `wrote` requests, `drafted` draft tokens and `reading` prompt
        tokens in total, other speculators included.
        """

    def on_hidden_states(
        self, request: Request, start: int, hidden: Float[Tensor, "tokens features"]
    ) -> None:
        """Pass the drafter the hidden states of committed tokens from `start` on."""
        if not self.failures.is_off(request):
            with self.failures.contained(request):
                self.drafter.on_hidden_states(request, start, hidden)

    def rest(self, took: float) -> None:
        """Let the drafter work between rounds; `took`: seconds of the last round."""
        if self._works_between and not self.failures.is_paused:
            with self.failures.contained():
                self.drafter.rest(took)

    def release(self, request: Request) -> None:
        """Free the state of a request that has ended."""
        self.budget.release(request)
        self.forget(request)

    def forget(self, request: Request) -> None:
        """Have the drafter forget a request that ended, or will be read again."""
        with self.failures.contained():
            self.drafter.release(request)


def _follow_grammars(requests: Sequence[Request]) -> bool:
    """Return whether any of these requests follows a grammar."""
    return any(request.grammar is not None for request in requests)


def select_layers(
    states: Tensor, captured: tuple[int, ...], layers: tuple[int, ...]
) -> Tensor:
    """Select `layers`, in order, from the hidden states of the `captured` layers."""
    if captured == layers:
        return states
    size = states.shape[1] // len(captured)
    return torch.cat(
        [states[:, size * at : size * (at + 1)] for at in map(captured.index, layers)],
        dim=1,
    )
