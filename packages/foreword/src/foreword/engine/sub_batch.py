"""The part of a round that shares a speculator: what it reads, and what it teaches."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from jaxtyping import Float
from torch import Tensor

from foreword.budget import AdaptiveBudget, RoundResult
from foreword.engine.scheduler import ScheduledRequest
from foreword.model import Read
from foreword.types import Batch, Clock, Draft, Round, Verdict
from foreword.types.round import Reason
from foreword.verify.verifier import Distributions

if TYPE_CHECKING:
    from foreword.engine.speculator import Speculator


@dataclass(slots=True)
class SubBatch:
    """Requests of one round that write and share a speculator."""

    speculator: "Speculator"
    scheduled: list[ScheduledRequest]
    drafting: bool
    batch: Batch = field(init=False)
    draft: Draft = field(init=False)
    verdict: Verdict = field(init=False)
    drawn: list[int] | None = None
    """The next token of each text, if the forward has drawn them."""
    budgets: list[int] = field(init=False)
    """Draft tokens allowed for each request."""
    proposed: Draft | None = None
    """The draft before the budget trimmed it; None if none was made."""
    failed: str | None = None
    """The error of the drafter in this round."""
    reasons: list[Reason | None] = field(init=False)
    """Why nothing was drafted, for each request; None where something was."""
    distributions: Distributions = field(init=False)
    rounds: dict[int, Round] = field(default_factory=dict)
    """Traces, by row, of the requests that ask for one."""
    depths: list[int] = field(init=False)
    """Depth of each tree as the drafter made it, without text that a grammar forces."""
    clock: Clock = field(default_factory=Clock)

    @property
    def only_draws(self) -> bool:
        """Whether plain draws are all that this round and the next one verify."""
        speculator = self.speculator
        if speculator.rule.follow is None or self.draft.nodes:
            return False
        return all(
            request.params.plain and speculator.stays_plain(request)
            for request in self.batch.requests
        )

    @property
    def levels(self) -> int:
        """Levels of the drafts before they were trimmed."""
        budget = self.speculator.budget
        if isinstance(budget, AdaptiveBudget) and budget.levels is not None:
            return budget.levels
        return sum(self.depths)


def reads_of(
    sub_batches: Sequence[SubBatch], readers: Sequence[ScheduledRequest]
) -> list[Read]:
    """Return the reads of all that write, then the prompts of the readers."""
    return [
        *(read for sub_batch in sub_batches for read in _written(sub_batch)),
        *(_prompt(entry) for entry in readers),
    ]


def split_logits(
    logits: Float[Tensor, "rows vocab"], sub_batches: Sequence[SubBatch]
) -> list[list[Float[Tensor, "_ vocab"]]]:
    """Return each request's rows: after the text and after each draft token."""
    counts = [
        [len(tree) + 1 for tree in sub_batch.draft.trees] for sub_batch in sub_batches
    ]
    if len(counts) == 1 and len(counts[0]) == 1:
        return [[logits]]
    pieces = iter(logits.split([rows for count in counts for rows in count]))
    return [[next(pieces) for _ in count] for count in counts]


def _written(sub_batch: SubBatch) -> Iterator[Read]:
    trees = sub_batch.draft.trees
    for entry, tree in zip(sub_batch.scheduled, trees, strict=True):
        request = entry.request
        yield Read(
            request.id,
            request.cached,
            request.pending + tree.tokens,
            None if sub_batch.draft.chain else tree.parents,
            keep=len(tree) + 1,
        )


def _prompt(entry: ScheduledRequest) -> Read:
    request = entry.request
    stop = request.cached + entry.read
    tokens = request.tokens[request.cached : stop]
    return Read(request.id, request.cached, tokens, keep=0)


def account(sub_batch: SubBatch, wrote: int, drafted: int, reading: int) -> None:
    """Account for the sub-batch's round: its forward held `wrote` requests that write,
    `drafted` draft tokens and `reading` prompt tokens in total.
    """
    budget, clock = sub_batch.speculator.budget, sub_batch.clock
    outcomes = zip(
        sub_batch.batch.requests,
        sub_batch.draft.trees,
        sub_batch.verdict.kept,
        strict=True,
    )
    for row, (request, tree, path) in enumerate(outcomes):
        request.stats.add(
            clock, len(tree), len(path), max(tree.depths), sub_batch.reasons[row]
        )
        if sub_batch.drafting:
            depth = sub_batch.depths[row]
            accepted = min(len(path), depth)
            requested = sub_batch.budgets[row]
            result = RoundResult(requested, depth, accepted, clock, reading > 0)
            budget.learn(request, result)
    sub_batch.speculator.settle(sub_batch, wrote, drafted, reading)
    if sub_batch.rounds:
        from foreword.engine import trace  # which few requests need

        trace.close(sub_batch)
