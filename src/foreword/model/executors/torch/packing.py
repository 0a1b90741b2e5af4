"""Provides the packing of many sequences in one forward of a torch module: the tokens,
positions and pool rows of each read.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from foreword.model.executors.torch.kv_pool import KVPool
from foreword.model.executors.torch.memories import TorchMemory
from foreword.model.executors.torch.plan import Plan
from foreword.model.kv.packing import Paged
from foreword.model.kv.reads import Read


@dataclass(frozen=True, slots=True)
class Packed:
    """The rows of one forward."""

    tokens: list[int]
    positions: list[int]
    kept: list[int]
    """Rows whose logits are returned."""
    plan: Plan


class Packing(Paged[KVPool]):
    """A base class that packs reads in one row of tokens, for keys and values in torch
    tensors.
    """

    def __init__(
        self,
        device: torch.device,
        memories: Sequence[TorchMemory] = (),
        *,
        pool: KVPool | None = None,
        adjacent: bool = False,
    ) -> None:
        """`pool`: the pages of another executor; None = its own, `adjacent` or not."""
        super().__init__(KVPool(adjacent=adjacent) if pool is None else pool, memories)
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
