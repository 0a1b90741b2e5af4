"""Provides the packing of many sequences in one forward: the tokens, positions and pool
rows of each read.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

import torch

from foreword.model.pool.kv_pool import KVPool
from foreword.model.pool.pages import PagePool
from foreword.model.pool.plan import Plan, Reach, Read, Span

Pool = TypeVar("Pool", bound=PagePool)


@dataclass(frozen=True, slots=True)
class Packed:
    """The rows of one forward."""

    tokens: list[int]
    positions: list[int]
    kept: list[int]
    """Rows whose logits are returned."""
    plan: Plan


class Paged(Generic[Pool]):
    """A base class that gives each sequence pages of a pool, and lays reads out in it;
    subclasses read and move.
    """

    copies = True
    guest = False
    """Whether another backend owns the pool, so that the rows written here are not to
    be used again.
    """

    def __init__(self, pool: Pool) -> None:
        self.pool = pool

    def open(
        self,
        id: int,
        capacity: int,
        tokens: Sequence[int] = (),
        tenant: str = "",
        layers: Sequence[int] = (),
    ) -> int:
        """Begin a sequence of at most `capacity` tokens, draft tokens included; see
        `PagePool.open`.
        """
        return self.pool.open(id, capacity, tokens, tenant, layers)

    def close(self, id: int) -> None:
        """Free a sequence. Unknown ids are ignored."""
        self.pool.close(id)

    def _moves(self, id: int, source: list[int], start: int) -> list[tuple[int, int]]:
        """Return the (source, target) rows of `move`, in order, without rows
        that stay.
        """
        if not source:
            return []
        table = self.pool.own(id, start, start + len(source))
        self.pool.note_move(id, source, start)
        return [
            (table.row(old), table.row(start + i))
            for i, old in enumerate(source)
            if old != start + i
        ]

    def _spans(self, reads: Sequence[Read], beyond: int = 0) -> tuple[Span, ...]:
        """Return the spans of the reads, with room for `beyond` more rows after each.

        Raises ModelError where a sequence exceeds its capacity, before any page is
        taken for them.
        """
        stops = [read.start + len(read.tokens) + beyond for read in reads]
        for read, stop in zip(reads, stops, strict=True):
            self.pool.check(read.id, stop)
        spans: list[Span] = []
        for read, stop in zip(reads, stops, strict=True):
            first = spans[-1].stop if spans else 0
            last = first + len(read.tokens)
            table = self.pool.extend(read.id, read.start, stop)
            reach = self._visible(read.id)
            spans.append(Span(first, last, table, read, reach=reach))
        return tuple(spans)

    def _visible(self, id: int) -> Reach:
        """Return the attention ranges of leading rows whose mask is not causal."""
        return {}

    def _note(self, reads: Sequence[Read]) -> None:
        """Note that these were read, so that later texts that begin alike can use the
        rows.
        """
        if not self.guest:
            for read in reads:
                final = len(read.tokens) - read.drafted
                self.pool.note(
                    read.id, read.start, self._keys(read), read.linked, final
                )

    def _keys(self, read: Read) -> list[int]:
        """Return the tokens of a read as later texts are compared with them."""
        return read.tokens


class Packing(Paged[KVPool]):
    """A base class that packs reads in one row of tokens, for keys and values in torch
    tensors.
    """

    def __init__(self, device: torch.device, *, adjacent: bool = False) -> None:
        super().__init__(KVPool(adjacent=adjacent))
        self._device = device

    def move(self, id: int, source: list[int], start: int) -> None:
        """Make the keys of an accepted branch contiguous: position source[i] moves to
        start + i.
        """
        if pairs := self._moves(id, source, start):
            moves = torch.tensor(pairs, device=self._device)
            self.pool.move(moves[:, 0], moves[:, 1])

    def _pack(self, reads: Sequence[Read]) -> Packed:
        """Pack the reads. Raises ModelError where a sequence exceeds its capacity."""
        spans = self._spans(reads)
        rows: list[int] = []
        kept: list[int] = []
        for span in spans:
            rows += span.table.rows(span.read.start, span.length)
            kept += range(span.stop - span.read.keep, span.stop)
        tokens = [token for read in reads for token in read.tokens]
        positions = [read.past + depth for read in reads for depth in read.depths]
        plan = Plan(self.pool, spans, torch.tensor(rows, device=self._device))
        return Packed(tokens, positions, kept, plan)
