"""Buffers for the target's hidden states until a head has read them, and logits of a
reduced vocabulary.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import torch
from jaxtyping import Float, Int
from torch import Tensor

from foreword.types import Request


@dataclass(slots=True)
class _StateBuffer:
    """Rows of one request, for the tokens from `start` up to but not
    including `end`.
    """

    start: int = 0
    end: int = 0
    parts: list[Tensor] = field(default_factory=list)


class TargetStates:
    """Buffer of the hidden states passed to `Drafter.on_hidden_states`."""

    def __init__(self) -> None:
        self._buffers: dict[int, _StateBuffer] = {}

    def add(
        self, id: int, start: int, hidden: Float[Tensor, "tokens features"]
    ) -> None:
        """Append the states of the tokens from index `start` on; skip them if they
        leave a gap or overlap.
        """
        buffer = self._buffers.setdefault(id, _StateBuffer())
        if start == buffer.end:
            buffer.parts.append(hidden)
            buffer.end += len(hidden)

    def up_to_date(self, request: Request) -> bool:
        """Return whether states are present for every token but the last, which the
        target has not read yet.
        """
        buffer = self._buffers.get(request.id)
        return buffer is not None and buffer.end == len(request.tokens) - 1

    def rows(self, id: int, start: int, count: int) -> Float[Tensor, "count features"]:
        """Return the states of `count` tokens from index `start` on."""
        buffer = self._buffers[id]
        if len(buffer.parts) > 1:
            buffer.parts = [torch.cat(buffer.parts)]
        first = start - buffer.start
        return buffer.parts[0][first : first + count]

    def drop(self, id: int, start: int) -> None:
        """Drop the states of the tokens before index `start`."""
        buffer = self._buffers[id]
        buffer.parts = [self.rows(id, start, buffer.end - start)]
        buffer.start = start

    def forget(self, id: int) -> None:
        """Drop the states of a finished request; ignore unknown ids."""
        self._buffers.pop(id, None)

    def __len__(self) -> int:
        return len(self._buffers)


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
