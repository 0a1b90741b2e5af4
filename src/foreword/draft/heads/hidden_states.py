"""Per-sequence buffers for hidden states: the target's until a drafter reads them, and
a head's own.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import torch
from jaxtyping import Float, Int
from torch import Tensor

from foreword.model import Read
from foreword.types import Request


@dataclass(slots=True)
class _StateBuffer:
    """Rows of one sequence, for the tokens from `start` up to but not
    including `end`.
    """

    start: int = 0
    end: int = 0
    parts: list[Tensor] = field(default_factory=list)


class TargetStates:
    """Buffer of the hidden states passed to `Drafter.on_hidden_states`, from the last
    requested `start` on.
    """

    def __init__(self) -> None:
        self._buffers: dict[int, _StateBuffer] = {}

    def add(
        self, sequence: Request, start: int, hidden: Float[Tensor, "tokens features"]
    ) -> None:
        """Append the states of the tokens from index `start` on; skip them if they
        leave a gap or overlap.
        """
        buffer = self._buffers.setdefault(sequence.id, _StateBuffer())
        if start == buffer.end:
            buffer.parts.append(hidden)
            buffer.end += len(hidden)

    def up_to_date(self, sequence: Request) -> bool:
        """Return whether states are present for every token but the last, which the
        target has not read yet.
        """
        buffer = self._buffers.get(sequence.id)
        return buffer is not None and buffer.end == len(sequence.tokens) - 1

    def since(self, sequence: Request, start: int) -> Float[Tensor, "tokens features"]:
        """Return the states of the tokens from index `start` on, and drop
        those before.
        """
        buffer = self._buffers[sequence.id]
        rows = torch.cat(buffer.parts)[start - buffer.start :]
        buffer.start, buffer.parts = start, [rows]
        return rows

    def forget(self, sequence: Request) -> None:
        """Drop the states of a finished sequence."""
        self._buffers.pop(sequence.id, None)

    def __len__(self) -> int:
        return len(self._buffers)


class HeadStates:
    """Per-sequence hidden states for a head that reads its own states, shared by the
    torch and C implementations.
    """

    def __init__(self) -> None:
        self._given: dict[int, Tensor] = {}
        self._own: dict[int, Tensor] = {}
        """The head's state at the last committed token, then at each draft token read
        after it.
        """

    def give(self, id: int, states: Float[Tensor, "tokens features"]) -> None:
        """Store the target's states for the tokens of the next read."""
        self._given[id] = states

    def given(self, id: int) -> Float[Tensor, "tokens features"]:
        """Return and remove the states stored by `give`."""
        return self._given.pop(id)

    def held(self, id: int) -> Float[Tensor, "read hidden"] | None:
        """Return the same as `of`; None before the first read of a sequence."""
        return self._own.get(id)

    def of(self, id: int) -> Float[Tensor, "read hidden"]:
        """Return the head's states at the last committed token and at each draft token
        read after it.
        """
        return self._own[id]

    def keep(self, reads: Sequence[Read], hidden: Float[Tensor, "rows hidden"]) -> None:
        """Store the head's states, one row for each token of a forward."""
        for read, states in zip(
            reads, hidden.split([len(read.tokens) for read in reads]), strict=True
        ):
            self._own[read.id] = (
                torch.cat([self._own[read.id], states]) if read.parents else states[-1:]
            )

    def forget(self, id: int) -> None:
        """Drop the states of a finished sequence; ignore unknown ids."""
        self._given.pop(id, None)
        self._own.pop(id, None)


def over_target_vocab(
    logits: Float[Tensor, "kept draft_vocab"],
    tokens: Int[Tensor, "draft_vocab"],
    vocab: int,
) -> Float[Tensor, "kept vocab"]:
    """Scatter draft-vocabulary logits to the target's token ids; all other entries are
    -inf.
    """
    if logits.shape[1] == vocab:
        return logits
    return logits.new_full((len(logits), vocab), -torch.inf).index_copy_(
        1, tokens, logits
    )
