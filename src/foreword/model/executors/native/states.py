"""Provides the recurrent state of one sequence in the C forward, and the borders of
pages at which it is kept.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from foreword.model.executors.native.layout import LANES
from foreword.model.kv.prefixes import PAGE, Prefix
from foreword.model.kv.reads import Read
from foreword.native.forward import Recurrence, State

SLOTS = 16
"""Tokens. Initial slots of a sequence."""
MOST_BACK = 64
"""Tokens.

Most that the state leaves out, so that a sequence can be truncated without rereading.
"""
NEVER = 2**62
"""A row that no text reaches."""


class SequenceState:
    """The state of one sequence in all recurrent layers."""

    def __init__(self, sizes: Recurrence, layers: int) -> None:
        self._sizes, self._layers = sizes, layers
        self._held = torch.zeros(
            layers, sizes.heads, sizes.key_dim, sizes.dim, dtype=torch.float32
        )
        self._tail = torch.zeros(
            layers, sizes.taps - 1, sizes.channels, dtype=torch.bfloat16
        )
        self.state = State(held=self._held.data_ptr(), tail=self._tail.data_ptr())
        self.tokens: list[int] = []
        """Tokens read, draft tokens too, by position."""
        self.back = 0
        """Last tokens that the state leaves out; `state.back` is that of one
        forward.
        """
        self.branch, self.prompt = 0, NEVER
        """Rows, at borders of pages, at which the state is to be kept: where another
        text went on otherwise, and the last border of the prompt. After it, every
        border that is reached is one."""
        self.latest: Prefix | None = None
        """The last page after the prompt whose state this sequence has kept."""
        self._widen(SLOTS, 0)

    @property
    def bytes(self) -> int:
        """Return the size of the state after a token."""
        return self._held.nbytes + self._tail.nbytes

    def copied(self) -> tuple[Tensor, ...]:
        """Return a copy of the state after the first `state.folded` tokens."""
        return self._held.clone(), self._tail.clone()

    def resume(self, tokens: Sequence[int], state: tuple[Tensor, ...]) -> None:
        """Begin after these tokens, with a copy of the state there."""
        for own, kept in zip((self._held, self._tail), state, strict=True):
            own.copy_(kept)
        # placeholders of images have numbers below 0, which the C code cannot read
        self.tokens = [max(0, token) for token in tokens]
        self.state.folded = len(tokens)

    def before_branch(self, read: Read) -> int:
        """Return how many tokens of a read to read first, so that the state stops at
        the branch; 0 = all at once.
        """
        count = self.branch + self.back - read.past
        fits = (
            self.state.folded < self.branch
            and 0 < count < len(read.tokens) - read.drafted
        )
        return (
            count
            if fits and not read.held and read.keep <= len(read.tokens) - count
            else 0
        )

    def _stop(self, most: int) -> int:
        """Return the row at which the state is to stop, in a forward after which it
        could have `most`.
        """
        border = most // PAGE * PAGE
        if self.state.folded < self.prompt <= most:
            return self.prompt
        return border if border > max(self.prompt, self.state.folded) else most

    def forget(self, past: int) -> list[int]:
        """Reset the state, which includes tokens after `past` that were removed; return
        the tokens before it.

        From now on the state leaves out more of the last tokens, so that this does not
        recur.
        """
        self._held.zero_()
        self._tail.zero_()
        back = 2 * (self.state.folded - past)
        self.back = min(max(self.back, back, 8), MOST_BACK)
        self.state.folded = 0
        return self.tokens[:past]

    def expect(self, read: Read, beyond: int) -> int:
        """Make room for a read and `beyond` draft tokens after it.

        Return the number of draft tokens, held ones too.
        """
        committed = len(read.tokens) - read.drafted
        end, state = read.start + len(read.tokens), self.state
        state.back = (
            read.past + committed - self._stop(read.past + committed - self.back)
        )
        # As `folded_after` in recurrent.c: each token after `folded` needs a slot.
        folded = (
            max(state.folded, read.past + committed - state.back)
            if committed
            else state.folded
        )
        if (needed := end + beyond - folded) > state.slots:
            self._widen(
                max(needed, 2 * state.slots),
                min(read.start, state.folded + state.slots),
            )
        self.tokens[read.start :] = read.tokens
        return read.held + len(read.tokens) - committed + beyond

    def _widen(self, slots: int, end: int) -> None:
        """Reallocate `slots` slots and copy the slots of the tokens before `end`."""
        sizes, state = self._sizes, self.state
        size = sizes.key_dim + sizes.dim + LANES
        taken = torch.zeros(self._layers, slots, sizes.heads, size, dtype=torch.float32)
        inputs = torch.zeros(self._layers, slots, sizes.channels, dtype=torch.bfloat16)
        for position in range(state.folded, end):
            old, new = position % state.slots, position % slots
            taken[:, new], inputs[:, new] = self._taken[:, old], self._inputs[:, old]
        self._taken = taken
        self._inputs = inputs
        state.slots = slots
        state.taken, state.inputs = taken.data_ptr(), inputs.data_ptr()
