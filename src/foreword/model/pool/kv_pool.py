"""Provides the pool of keys and values: one pool a layer, in which each open sequence owns a slot of adjacent rows."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from jaxtyping import Float, Int
from torch import Tensor

PAGE = 64
"""Rows. Slots start and end on multiples of this."""


def whole(rows: int) -> int:
    """Return `rows` rounded up to a length over which a product sums in the same order as over any longer one.

    torch's fused attention takes keys in blocks of 512 and a remainder. The matrix product under it (MKL, float32) sums
    up to 192 or 384 keys at once, by processor, and splits more than that by its own rules. So the remainder is at most
    192, in whole pages, or it is rounded up to 512. tests/model/pool/test_attention.py fails where that is not enough.
    A slot of such a length holds the padded keys of every sequence that fits into it.
    """
    pages = -(-rows // PAGE) * PAGE
    over = pages % 512
    return pages - over + 512 if over > 192 else pages


@dataclass(frozen=True, slots=True)
class Slot:
    """A run of rows of the pool that belongs to one sequence."""

    start: int
    capacity: int

    @property
    def stop(self) -> int:
        return self.start + self.capacity


class SlotPool:
    """An allocator of slots, first fit, that grows when no gap is long enough; subclasses hold the rows themselves."""

    def __init__(self, rows: int = 1024) -> None:
        self.rows = rows
        self.spare = 0
        """Rows added to every sequence's capacity, for a drafter that writes into the same pool."""
        self._free: list[Slot] = [Slot(0, rows)]
        self._of: dict[int, Slot] = {}

    def __getitem__(self, id: int) -> Slot:
        """Return the slot of an open sequence."""
        return self._of[id]

    def open(self, id: int, capacity: int) -> None:
        """Reserve a slot for a sequence of at most `capacity` tokens, draft tokens included."""
        self._of[id] = self.reserve(capacity + self.spare)

    def close(self, id: int) -> None:
        """Free the slot of a sequence. Unknown ids are ignored."""
        if id in self._of:
            self.release(self._of.pop(id))

    def reserve(self, tokens: int) -> Slot:
        """Return a free slot of at least `tokens` rows."""
        need = whole(tokens)
        for i, gap in enumerate(self._free):
            if gap.capacity >= need:
                rest = Slot(gap.start + need, gap.capacity - need)
                self._free[i : i + 1] = [rest] if rest.capacity else []
                return Slot(gap.start, need)
        added = max(need, self.rows)
        self.resize(self.rows + added)
        self.release(Slot(self.rows, added))
        self.rows += added
        return self.reserve(tokens)

    def release(self, extent: Slot) -> None:
        """Free a slot and join neighbouring gaps."""
        gaps = sorted([*self._free, extent], key=lambda gap: gap.start)
        joined = gaps[:1]
        for gap in gaps[1:]:
            last = joined[-1]
            if last.stop == gap.start:
                joined[-1] = Slot(last.start, last.capacity + gap.capacity)
            else:
                joined.append(gap)
        self._free = joined

    def resize(self, rows: int) -> None:
        """Grow to this many rows; existing rows keep their contents."""


class KVPool(SlotPool):
    """Keys and values, [rows, heads, dim] a layer, allocated on first use with the shapes that the model writes.

    Rollback is only a smaller length on the caller's side: stale rows stay and are overwritten. Rows start as zeros and
    stay finite, so a masked stale row contributes exactly zero.
    """

    def __init__(self, rows: int = 1024) -> None:
        super().__init__(rows)
        self._layers: dict[int, tuple[Tensor, Tensor]] = {}

    def resize(self, rows: int) -> None:
        for index, (keys, values) in self._layers.items():
            self._layers[index] = (grown(keys, rows), grown(values, rows))

    def write(
        self,
        layer: int,
        key: Float[Tensor, "rows heads dim"],
        value: Float[Tensor, "rows heads value_dim"],
        rows: Int[Tensor, "written"],
    ) -> tuple[Float[Tensor, "pool heads dim"], Float[Tensor, "pool heads value_dim"]]:
        """Write the first len(rows) new keys and values of a layer; return all its keys and values."""
        if layer not in self._layers:
            self._layers[layer] = (
                key.new_zeros(self.rows, *key.shape[1:]),
                value.new_zeros(self.rows, *value.shape[1:]),
            )
        keys, values = self._layers[layer]
        keys[rows] = key[: rows.numel()]
        values[rows] = value[: rows.numel()]
        return keys, values

    @torch.inference_mode()
    def move(self, source: Int[Tensor, "rows"], target: Int[Tensor, "rows"]) -> None:
        """Copy rows (an accepted branch of a tree) to the end of the committed tokens, in every layer."""
        for keys, values in self._layers.values():
            keys[target] = keys[source]
            values[target] = values[source]

    @property
    def bytes(self) -> int:
        """Return the size of the pool, in bytes."""
        return sum(t.numel() * t.element_size() for pair in self._layers.values() for t in pair)


def grown(tensor: Tensor, rows: int) -> Tensor:
    """Return the tensor padded with zeros to `rows` in its first dimension."""
    return torch.cat([tensor, tensor.new_zeros(rows - tensor.shape[0], *tensor.shape[1:])])
