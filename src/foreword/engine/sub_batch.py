"""The part of a round that shares a speculator, and what each step adds to it."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from foreword.engine.scheduler import ScheduledSequence
from foreword.types import Batch, Clock, Draft, Round, Verdict
from foreword.types.round import Reason
from foreword.verify.verifier import Distributions

if TYPE_CHECKING:
    from foreword.engine.speculator import Speculator


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
