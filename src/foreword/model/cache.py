"""Keys and values of every running sequence, in one pool per layer; a sequence owns one run of rows.

Knows rows and shapes; knows nothing about models, masks or tokens.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from jaxtyping import Float, Int
from torch import Tensor

PAGE = 64
"""Runs start and end on multiples of this many rows."""


def whole(rows: int) -> int:
    """`rows` rounded up to a length over which a product sums in the same order as over any longer one.

    torch's fused attention takes keys 512 at a time, and what is left at the end. The matrix product under it (MKL,
    float32) sums up to 192 or 384 of them in one go, by processor, and cuts what is more in ways of its own. So what is
    left is at most 192, in whole pages, or it is 512. tests/model/test_attention.py finds a machine on which that does
    not do. A run of such a length holds the padded keys of every text that fits into it.
    """
    pages = -(-rows // PAGE) * PAGE
    over = pages % 512
    return pages - over + 512 if over > 192 else pages


@dataclass(frozen=True, slots=True)
class Extent:
    """A run of rows that belongs to one sequence."""

    start: int
    capacity: int

    @property
    def stop(self) -> int:
        return self.start + self.capacity


class Extents:
    """Hands out runs of rows, first fit, and grows when no gap is long enough. Subclasses hold what the rows hold."""

    def __init__(self, rows: int = 1024) -> None:
        self.rows = rows
        self.spare = 0
        """Rows to keep beyond every sequence's capacity, for a drafter that guesses in the same memory."""
        self._free: list[Extent] = [Extent(0, rows)]
        self._of: dict[int, Extent] = {}

    def __getitem__(self, id: int) -> Extent:
        """The run of a sequence that is open."""
        return self._of[id]

    def open(self, id: int, capacity: int) -> None:
        """Make room for a sequence of at most `capacity` tokens, guesses included."""
        self._of[id] = self.reserve(capacity + self.spare)

    def close(self, id: int) -> None:
        """Forget a sequence. Unknown ids are ignored."""
        if id in self._of:
            self.release(self._of.pop(id))

    def reserve(self, tokens: int) -> Extent:
        """A run of at least `tokens` rows."""
        need = whole(tokens)
        for i, gap in enumerate(self._free):
            if gap.capacity >= need:
                rest = Extent(gap.start + need, gap.capacity - need)
                self._free[i : i + 1] = [rest] if rest.capacity else []
                return Extent(gap.start, need)
        added = max(need, self.rows)
        self.resize(self.rows + added)
        self.release(Extent(self.rows, added))
        self.rows += added
        return self.reserve(tokens)

    def release(self, extent: Extent) -> None:
        """Give a run back; neighbouring gaps are joined."""
        gaps = sorted([*self._free, extent], key=lambda gap: gap.start)
        joined = gaps[:1]
        for gap in gaps[1:]:
            last = joined[-1]
            if last.stop == gap.start:
                joined[-1] = Extent(last.start, last.capacity + gap.capacity)
            else:
                joined.append(gap)
        self._free = joined

    def resize(self, rows: int) -> None:
        """Make room for this many rows; the ones there are stay as they are."""


class KVPool(Extents):
    """Keys and values, [rows, heads, dim] a layer, made on first use with the shapes the model really writes.

    Rolling a chain back is only a smaller length on the caller's side: stale rows stay and are overwritten. They are
    finite from the start (zeros), so a masked stale row contributes exactly nothing.
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
        """Write the first len(rows) of the new keys and values of a layer; returns all the keys and values it holds."""
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
        """Copy rows (an accepted branch of a tree) to where the text continues, in every layer."""
        for keys, values in self._layers.values():
            keys[target] = keys[source]
            values[target] = values[source]

    @property
    def bytes(self) -> int:
        """Memory held, in bytes."""
        return sum(t.numel() * t.element_size() for pair in self._layers.values() for t in pair)


def grown(held: Tensor, rows: int) -> Tensor:
    """The same tensor with zeros after it, `rows` long in its first dimension."""
    return torch.cat([held, held.new_zeros(rows - held.shape[0], *held.shape[1:])])
