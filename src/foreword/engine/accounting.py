"""What a round teaches: statistics of each sequence, and the budget policy."""

from __future__ import annotations

from foreword.budget import RoundResult
from foreword.engine.sub_batch import SubBatch


def account(sub_batch: SubBatch, wrote: int, drafted: int, reading: int) -> None:
    """Account for the sub-batch's round: its forward held `wrote` sequences that write,
    `drafted` draft tokens and `reading` prompt tokens in total.
    """
    budget, clock = sub_batch.speculator.budget, sub_batch.clock
    if sub_batch.drafting:
        budget.on_timing(wrote + drafted, clock, reading)
    has_drafted = sub_batch.drafting and any(sub_batch.budgets)
    outcomes = zip(
        sub_batch.batch.sequences,
        sub_batch.draft.trees,
        sub_batch.verdict.kept,
        strict=True,
    )
    for row, (sequence, tree, path) in enumerate(outcomes):
        sequence.stats.add(
            clock, len(tree), len(path), max(tree.depths), sub_batch.reasons[row]
        )
        if has_drafted:
            depth = sub_batch.depths[row]
            accepted = min(len(path), depth)
            requested = sub_batch.budgets[row]
            result = RoundResult(requested, depth, accepted, clock.propose, clock.total)
            budget.learn(sequence, result)
    sub_batch.speculator.settle(sub_batch, wrote, drafted, reading)
