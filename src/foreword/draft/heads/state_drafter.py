"""The drafter whose head reads a hidden state of the target beside each token, then its
own states.
"""

from __future__ import annotations

from typing import Protocol, runtime_checkable

from jaxtyping import Float
from torch import Tensor

from foreword.draft.heads.hidden_states import HeadStates, TargetStates
from foreword.draft.tree.drafter import (
    DraftModel,
    ModelDrafter,
    capacity,
    catch_up,
)
from foreword.model import Read
from foreword.types import Batch, Request


@runtime_checkable
class StateReader(DraftModel, Protocol):
    """A head with keys and values of its own, in torch or in C."""

    head_states: HeadStates

    def open(self, id: int, capacity: int) -> int: ...


class StateDrafter(ModelDrafter):
    """Drafter whose head reads the target's hidden states; each tree level takes one
    forward of the head.
    """

    def __init__(self, reader: StateReader, states: tuple[int, ...]) -> None:
        """`states`: the target's hidden states that the head reads."""
        super().__init__(reader)
        self._reader = reader
        self.hidden_layers = states
        self._target_states = TargetStates()
        self._read: dict[int, int] = {}
        """Rows of each sequence whose keys and values are final."""

    def on_hidden_states(
        self, sequence: Request, start: int, hidden: Float[Tensor, "tokens features"]
    ) -> None:
        self._target_states.add(sequence, start, hidden)

    def fit(self, batch: Batch, sequence: Request, nodes: int) -> int:
        # The first token of a sequence has no hidden state before it.
        ready = len(sequence.tokens) > 1 and self._target_states.up_to_date(sequence)
        return super().fit(batch, sequence, nodes) if ready else 0

    def prefill(self, sequence: Request) -> Read:
        name = sequence.id
        tokens = sequence.tokens
        if name not in self._read:
            self._reader.open(name, capacity(sequence))
            self._read[name] = 0
        last = len(tokens) - 2
        # the last row is always read, for its logits
        start = min(self._read[name], last)
        states = self._target_states.since(sequence, start)

        def give(read: Read) -> None:
            first = read.past - start
            own = states[first : first + len(read.tokens)]
            self._reader.head_states.give(name, own)

        def read(one: Read) -> None:
            give(one)
            self._reader.read([one])

        end = catch_up(name, start, tokens[start + 1 :], read)
        give(end)
        self._read[name] = last + 1
        return end

    def release(self, sequence: Request) -> None:
        super().release(sequence)
        self._target_states.forget(sequence)
        self._read.pop(sequence.id, None)
