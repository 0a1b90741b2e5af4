"""Provides the packing of many sequences in one forward: the tokens, positions and pool rows of each read."""

from __future__ import annotations

from collections.abc import Sequence as List
from dataclasses import dataclass
from typing import Generic, TypeVar

import torch

from foreword.errors import ModelError
from foreword.model.pool.kv_pool import KVPool, SlotPool
from foreword.model.pool.plan import Plan, Read, Span

Pool = TypeVar("Pool", bound=SlotPool)


@dataclass(frozen=True, slots=True)
class Packed:
    """The rows of one forward."""

    tokens: list[int]
    positions: list[int]
    kept: list[int]
    """Rows whose logits are returned."""
    plan: Plan


class SlotAllocator(Generic[Pool]):
    """A base class that gives each sequence a slot of a pool, and lays reads out in it; subclasses read and move."""

    copies = True

    def __init__(self, pool: Pool) -> None:
        self._pool = pool

    def open(self, id: int, capacity: int) -> None:
        """Reserve a slot for a sequence of at most `capacity` tokens, draft tokens included."""
        self._pool.open(id, capacity)

    def close(self, id: int) -> None:
        """Free the slot of a sequence. Unknown ids are ignored."""
        self._pool.close(id)

    def _moves(self, id: int, source: list[int], start: int) -> list[tuple[int, int]]:
        """Return the (source, target) rows of `move`, in order, without rows that stay."""
        base = self._pool[id].start
        return [(base + old, base + start + i) for i, old in enumerate(source) if old != start + i]

    def _spans(self, reads: List[Read]) -> tuple[Span, ...]:
        """Return the spans of the reads. Raises ModelError where a sequence exceeds its slot."""
        spans: list[Span] = []
        for read in reads:
            extent, start = self._pool[read.id], spans[-1].stop if spans else 0
            if read.start + len(read.tokens) > extent.capacity:
                raise ModelError(f"cannot read sequence {read.id}: it exceeds its slot of {extent.capacity} tokens")
            spans.append(Span(start, start + len(read.tokens), extent, read))
        return tuple(spans)


class Packing(SlotAllocator[KVPool]):
    """A base class that packs reads in one row of tokens, for keys and values in torch tensors."""

    def __init__(self, device: torch.device) -> None:
        super().__init__(KVPool())
        self._device = device

    def move(self, id: int, source: list[int], start: int) -> None:
        """Make the keys of an accepted branch contiguous: position source[i] moves to start + i."""
        if pairs := self._moves(id, source, start):
            moves = torch.tensor(pairs, device=self._device)
            self._pool.move(moves[:, 0], moves[:, 1])

    def _pack(self, reads: List[Read]) -> Packed:
        """Pack the reads. Raises ModelError where a sequence exceeds its slot."""
        spans = self._spans(reads)
        rows: list[int] = []
        for span in spans:
            rows += range(span.extent.start + span.read.start, span.extent.start + span.length)
        kept = [row for span in spans for row in range(span.stop - span.read.keep, span.stop)]
        tokens = [token for read in reads for token in read.tokens]
        positions = [read.past + depth for read in reads for depth in read.depths]
        return Packed(tokens, positions, kept, Plan(self._pool, spans, torch.tensor(rows, device=self._device)))
