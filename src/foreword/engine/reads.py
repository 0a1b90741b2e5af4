"""The tokens that the target reads in one round, and whose row of logits is whose."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from jaxtyping import Float
from torch import Tensor

from foreword.engine.scheduler import ScheduledSequence
from foreword.engine.sub_batch import SubBatch
from foreword.model import Read


def reads_of(
    sub_batches: Sequence[SubBatch], readers: Sequence[ScheduledSequence]
) -> list[Read]:
    """Return the pending and draft tokens of all that write, then the prompt tokens of
    the readers.
    """
    return [
        *(read for sub_batch in sub_batches for read in _written(sub_batch)),
        *(_prompt(entry) for entry in readers),
    ]


def split_logits(
    logits: Float[Tensor, "rows vocab"], sub_batches: Sequence[SubBatch]
) -> list[list[Float[Tensor, "_ vocab"]]]:
    """Return the rows of each sequence, per sub-batch: after its last committed token
    and after each draft token.
    """
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
        sequence = entry.sequence
        yield Read(
            sequence.id,
            sequence.cached,
            sequence.pending + tree.tokens,
            None if sub_batch.draft.chain else tree.parents,
            keep=len(tree) + 1,
        )


def _prompt(entry: ScheduledSequence) -> Read:
    sequence = entry.sequence
    stop = sequence.cached + entry.read
    tokens = sequence.tokens[sequence.cached : stop]
    return Read(sequence.id, sequence.cached, tokens, keep=0)
