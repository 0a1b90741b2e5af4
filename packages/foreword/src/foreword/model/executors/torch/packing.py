"""Packs sequences into one forward: tokens, positions and pool rows of each read."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from foreword.model.executors.torch.kv_pool import KVPool
from foreword.model.executors.torch.memories import TorchMemory
from foreword.model.executors.torch.plan import Plan
from foreword.model.kv.packing import Paged
from foreword.model.kv.reads import Read, Span


@dataclass(frozen=True, slots=True)
class Packed:
    """The rows of one forward."""

    tokens: list[int]
    positions: list[int]
    kept: list[int]
    """Rows whose logits are returned."""
    plan: Plan


class Packing(Paged[KVPool]):
    """A base class that packs reads in one row, for keys and values in tensors."""

    def __init__(
        self,
        device: torch.device,
        memories: Sequence[TorchMemory] = (),
        *,
        pool: KVPool | None = None,
    ) -> None:
        super().__init__(pool or KVPool(), memories)
        self._device = device

    def move(self, id: int, source: list[int], start: int) -> None:
        """Make an accepted branch contiguous: position source[i] moves to start + i."""
        if pairs := self.pool.moves(id, source, start):
            moves = torch.tensor(pairs, device=self._device)
            self.pool.move(moves[:, 0], moves[:, 1])

    def _pack(self, reads: Sequence[Read]) -> Packed:
        """Pack the reads. Raises ModelError where a sequence exceeds its capacity."""
        return self._laid_out(self._spans(reads))

    def _laid_out(self, spans: tuple[Span, ...]) -> Packed:
        """Return the rows of a forward over these spans, whose pages exist."""
        tokens: list[int] = []
        positions: list[int] = []
        logit_rows: list[int] = []
        rows: list[int] = []
        for span in spans:
            read = span.read
            tokens += read.tokens
            positions += [read.past + depth for depth in read.depths]
            logit_rows += range(span.stop - read.keep, span.stop)
            rows += span.table.rows(read.start, span.length)
        plan = Plan(self.pool, spans, torch.tensor(rows, device=self._device))
        return Packed(tokens, positions, logit_rows, plan)
