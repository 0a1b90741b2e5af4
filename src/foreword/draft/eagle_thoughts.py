"""What was thought of each text that a head of EAGLE-3 reads, until it is read again; however the head is computed.

Knows rows of states and who they belong to; knows nothing about weights.
"""

from __future__ import annotations

from collections.abc import Sequence as List

import torch
from jaxtyping import Float, Int
from torch import Tensor

from foreword.model import Read


class Thoughts:
    """By sequence: what the target thought of the text that is read next, then what the head thought at its end."""

    def __init__(self) -> None:
        self._given: dict[int, Tensor] = {}
        self._own: dict[int, Tensor] = {}
        """Of the end of a text, then of each guess read after it."""

    def give(self, id: int, states: Float[Tensor, "tokens features"]) -> None:
        """What the target thought, for the text that is read next."""
        self._given[id] = states

    def given(self, id: int) -> Float[Tensor, "tokens features"]:
        """The same, once."""
        return self._given.pop(id)

    def of(self, id: int) -> Float[Tensor, "read hidden"]:
        """What the head thought at the end of the text, and at each guess that was read after it."""
        return self._own[id]

    def keep(self, reads: List[Read], thoughts: Float[Tensor, "rows hidden"]) -> None:
        """What the head thought in each row of a forward."""
        for read, thought in zip(reads, thoughts.split([len(read.tokens) for read in reads]), strict=True):
            self._own[read.id] = torch.cat([self._own[read.id], thought]) if read.parents else thought[-1:]

    def forget(self, id: int) -> None:
        """The sequence has ended. Unknown ids are ignored."""
        self._given.pop(id, None)
        self._own.pop(id, None)


def spread(
    logits: Float[Tensor, "kept draft_vocab"], tokens: Int[Tensor, "draft_vocab"], vocab: int
) -> Float[Tensor, "kept vocab"]:
    """Logits of the tokens that can be guessed at the places of the target's ids; -inf everywhere else."""
    if logits.shape[1] == vocab:
        return logits
    return logits.new_full((len(logits), vocab), -torch.inf).index_copy_(1, tokens, logits)
