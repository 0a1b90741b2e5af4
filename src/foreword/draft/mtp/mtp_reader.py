"""The layers of multi-token prediction in torch, for many sequences at once."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor

from foreword.draft.heads.state_packing import StatePacking
from foreword.draft.mtp.mtp_head import MtpHead
from foreword.model import Model, Read
from foreword.model.executors.torch.packing import (
    Packed,
)


class MtpReader(StatePacking):
    """Reader of many sequences; it keeps its states at each sequence's end and draft
    tokens: of all layers, side by side.
    """

    def __init__(
        self,
        head: MtpHead,
        target: Model,
    ) -> None:
        # packed layers have no weights to ask
        self._dtype = head.dtype
        super().__init__(head, target)
        self._head = head
        self._target = target
        self.context: int = target.context

    @torch.inference_mode()
    def read(
        self,
        reads: Sequence[Read],
    ) -> Float[Tensor, "kept vocab"]:
        with self._threads():
            rows = self._pack(reads)
            depths = [depth for read in reads for depth in _depths(read)]
            hidden = self._states(reads, rows, first=self._layer(min(depths)))
            self.head_states.keep(reads, hidden.flatten(1))
            if not rows.kept:
                return hidden.new_empty(0, self._target.vocab)
            layers = [self._layer(depths[row]) for row in rows.kept]
            return self._target.lm_head(hidden[rows.kept, layers])

    def _layer(self, depth: int) -> int:
        """Return the layer that predicts what follows draft tokens at this depth; 0 is
        the end of the text.
        """
        return min(depth, self._head.depth - 1)

    def _states(
        self, reads: Sequence[Read], rows: Packed, *, first: int
    ) -> Float[Tensor, "rows layers hidden"]:
        """Return the states of the layers from `first` on; zeros before it."""
        before = torch.cat([self._before(read) for read in reads])
        count = len(before)
        packed = self._padded(rows)
        lack = packed.shape[1] - count
        embedded = self._target.embed(packed[:1]).to(before.dtype)
        states = torch.zeros_like(before)
        for layer in range(first, self._head.depth):
            given = F.pad(before[:, layer], (0, 0, 0, lack))
            found: Any = self._head(
                layer, embedded, given[None], packed[1:], plan=rows.plan
            )
            states[:, layer] = found[0, :count]
            if layer + 1 < self._head.depth:
                self._shift(reads, states[:, layer], before[:, layer + 1])
        return states

    def _before(
        self,
        read: Read,
    ) -> Float[Tensor, "tokens layers hidden"]:
        """Return the states that the layers read beside each token.

        For committed tokens the first layer reads the target's; the others wait for the
        layer before them (`_shift`). Draft tokens have the states of their parent.
        """
        depth = self._head.depth
        if not read.parents:
            given = self.head_states.given(read.id).to(self._dtype)
            rest = given.new_zeros(len(given), depth - 1, self._head.hidden)
            if depth > 1 and (own := self._last(read)) is not None:
                rest[0] = own[:-1]
            return torch.cat([given[:, None], rest], 1)
        parents = [parent + 1 for parent in read.parents[read.held :]]
        own = self.head_states.of(read.id)[parents]
        own = own.unflatten(1, (depth, self._head.hidden))
        return own if depth == 1 else own[:, [0, *range(depth - 1)]]

    def _last(
        self,
        read: Read,
    ) -> Float[Tensor, "layers hidden"] | None:
        """Return the states at the last committed token before a read, if there are
        any.
        """
        held = self.head_states.held(read.id)
        if held is None or not read.past:
            return None
        return held[0].unflatten(0, (self._head.depth, self._head.hidden))

    def _shift(
        self,
        reads: Sequence[Read],
        states: Float[Tensor, "rows hidden"],
        following: Float[Tensor, "rows hidden"],
    ) -> None:
        """Write the states of a layer at committed tokens to the rows after them, where
        the next layer reads them.
        """
        start = 0
        for read in reads:
            stop = start + len(read.tokens)
            if not read.parents:
                following[start + 1 : stop] = states[start : stop - 1]
            start = stop


def _depths(read: Read) -> Sequence[int]:
    """Return the depth of each token as a draft token; 0 for committed ones."""
    if not read.parents:
        return [0] * len(read.tokens)
    return [depth + 1 for depth in read.depths]
