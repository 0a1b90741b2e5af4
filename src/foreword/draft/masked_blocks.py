"""Blocks of a head that fills in masked tokens, for all texts that want one, in torch or in C (masked_native.py).

Knows how much of each text was heard; knows nothing about checkpoints, or how guesses are read from a block.
"""

from __future__ import annotations

from collections.abc import Sequence as List

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor, nn

from foreword.draft.block import Blocks, Wanted
from foreword.draft.masked import MaskedHead
from foreword.draft.masked_native import NativeStack, refused
from foreword.model import Model
from foreword.model.cache import KVPool
from foreword.model.linear import MIN_ROWS
from foreword.model.packing import Rooms


class MaskedBlocks(Blocks):
    """Blocks of a head, with the keys and values of every text that it follows; those of a block are not kept."""

    def __init__(self, head: MaskedHead, target: Model) -> None:
        self.layout = head.layout
        self._stack: Stack | NativeStack = Stack(head, target)
        super().__init__(head, target, head.layout.guesses)

    def lay_out(self, head: nn.Module) -> None:
        if not isinstance(head, MaskedHead) or refused(head, self.target):
            super().lay_out(head)
        else:
            self._stack = NativeStack(head, self.target)
            for name, part in head.named_children():
                if name not in NativeStack.TAKES:
                    super().lay_out(part)

    def lighten(self) -> None:
        """Hold the layers in 8 bits where that makes blocks cheaper; what they guess is a little off then."""
        if isinstance(self._stack, NativeStack):
            self._stack.lighten()

    def open(self, id: int, capacity: int) -> None:
        super().open(id, capacity)
        self._stack.open(id, capacity + self.layout.block)

    def close(self, id: int) -> None:
        super().close(id)
        self._stack.close(id)

    @torch.inference_mode()
    def compute(self, wanted: List[Wanted]) -> Float[Tensor, "wanted guesses vocab"]:
        heard = [one for one in wanted if len(one.states)]
        if heard:
            self._stack.listen(heard)
        hidden = self._stack.think(wanted)[:, self.layout.block - self.guesses :]
        return self.target.speak(hidden.flatten(0, 1)).unflatten(0, (len(wanted), -1))


class Stack(Rooms[KVPool]):
    """Computes blocks; the plain definition of `NativeStack` in masked_native.py."""

    def __init__(self, head: MaskedHead, target: Model) -> None:
        super().__init__(KVPool())
        self.head, self.layout, self.target = head, head.layout, target
        self._lengths: dict[int, int] = {}

    def open(self, id: int, capacity: int) -> None:
        super().open(id, capacity)
        self._lengths[id] = 0

    def close(self, id: int) -> None:
        super().close(id)
        self._lengths.pop(id, None)

    def listen(self, wanted: List[Wanted]) -> None:
        """Remember what the target thought since the last block."""
        places, positions = self._places({one.id: len(one.states) for one in wanted})
        states = torch.cat([one.states for one in wanted]).to(self.target.dtype)
        short = max(0, MIN_ROWS - len(states))
        remembered = self.head.remembered(F.pad(states, (0, 0, 0, short)), F.pad(positions, (0, short)))
        for number, (key, value) in enumerate(remembered):
            self._pool.write(number, key, value, places)
        for one in wanted:
            self._lengths[one.id] += len(one.states)

    def think(self, wanted: List[Wanted]) -> Float[Tensor, "wanted block hidden"]:
        block, masks = self.layout.block, [self.layout.mask] * (self.layout.block - 1)
        tokens = torch.tensor([token for one in wanted for token in (one.anchor, *masks)], device=self.target.device)
        places, positions = self._places({one.id: block for one in wanted})
        starts = [self._pool[one.id].start for one in wanted]
        held = [slice(start, start + self._lengths[one.id] + block) for start, one in zip(starts, wanted, strict=True)]

        def attend(number: int, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
            keys, values = self._pool.write(number, key, value, places)
            return torch.cat(
                [_seen(rows, keys[h], values[h]) for rows, h in zip(query.split(block), held, strict=True)]
            )

        x = self.target.embed(tokens).to(self.target.dtype)
        return self.head(x, positions, attend).unflatten(0, (len(wanted), block))

    def _places(self, counts: dict[int, int]) -> tuple[Int[Tensor, "rows"], Int[Tensor, "rows"]]:
        """Rows of the pool and positions of so many tokens after each text."""
        positions = [range(self._lengths[one], self._lengths[one] + count) for one, count in counts.items()]
        starts = [self._pool[one].start for one in counts]
        places = [start + place for start, span in zip(starts, positions, strict=True) for place in span]
        both = torch.tensor([places, [place for span in positions for place in span]], device=self.target.device)
        return both[0], both[1]


def _seen(
    query: Float[Tensor, "rows heads dim"], keys: Float[Tensor, "held kv dim"], values: Float[Tensor, "held kv dim"]
) -> Float[Tensor, "rows heads dim"]:
    """Attention of rows that see all keys; query heads that share a key head are rows of one product."""
    rows, heads, dim = query.shape
    folded = query.transpose(0, 1).reshape(1, keys.shape[1], -1, dim)
    out = F.scaled_dot_product_attention(folded, keys.transpose(0, 1)[None], values.transpose(0, 1)[None])
    return out.reshape(heads, rows, dim).transpose(0, 1)
