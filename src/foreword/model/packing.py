"""Many sequences side by side in one forward, with their keys and values in one pool: where each row goes.

Knows reads, rows and positions; knows nothing about what reads them.
"""

from __future__ import annotations

from collections.abc import Sequence as List
from dataclasses import dataclass
from typing import Generic, TypeVar

import torch

from foreword.errors import ModelError
from foreword.model.cache import Extents, KVPool
from foreword.model.plan import Plan, Read, Span

Pool = TypeVar("Pool", bound=Extents)


@dataclass(frozen=True, slots=True)
class Packed:
    """The rows of one forward."""

    tokens: list[int]
    positions: list[int]
    kept: list[int]
    """Rows whose logits are wanted."""
    plan: Plan


class Rooms(Generic[Pool]):
    """Gives every sequence a run of rows in a pool, and says which of them a forward writes; subclasses read, move."""

    copies = True

    def __init__(self, pool: Pool) -> None:
        self._pool = pool

    def open(self, id: int, capacity: int) -> None:
        """Make room for a sequence of at most `capacity` tokens, guesses included."""
        self._pool.open(id, capacity)

    def close(self, id: int) -> None:
        """Forget a sequence. Unknown ids are ignored."""
        self._pool.close(id)

    def _moves(self, id: int, source: list[int], start: int) -> list[tuple[int, int]]:
        """From which row to which, in this order: what `move` of a driver is asked for, without those that stay."""
        base = self._pool[id].start
        return [(base + held, base + start + i) for i, held in enumerate(source) if held != start + i]

    def _spans(self, reads: List[Read]) -> tuple[Span, ...]:
        """Raises ModelError when a sequence outgrows its room."""
        spans: list[Span] = []
        for read in reads:
            extent, start = self._pool[read.id], spans[-1].stop if spans else 0
            if read.start + len(read.tokens) > extent.capacity:
                raise ModelError(f"sequence {read.id} outgrew its room of {extent.capacity} tokens")
            spans.append(Span(start, start + len(read.tokens), extent, read))
        return tuple(spans)


class Packing(Rooms[KVPool]):
    """Lays what is read out as one row of tokens, for models whose keys and values are tensors of torch."""

    def __init__(self, device: torch.device) -> None:
        super().__init__(KVPool())
        self._device = device

    def move(self, id: int, source: list[int], start: int) -> None:
        """Make the keys of an accepted branch contiguous: position source[i] moves to start + i."""
        if pairs := self._moves(id, source, start):
            moves = torch.tensor(pairs, device=self._device)
            self._pool.move(moves[:, 0], moves[:, 1])

    def _pack(self, reads: List[Read]) -> Packed:
        """Raises ModelError when a sequence outgrows its room."""
        spans = self._spans(reads)
        rows: list[int] = []
        for span in spans:
            rows += range(span.extent.start + span.read.start, span.extent.start + span.length)
        kept = [row for span in spans for row in range(span.stop - span.read.keep, span.stop)]
        tokens = [token for read in reads for token in read.tokens]
        positions = [read.past + depth for read in reads for depth in read.depths]
        return Packed(tokens, positions, kept, Plan(self._pool, spans, torch.tensor(rows, device=self._device)))
