"""Adapters of the backend `native`: pairs in the layout of csrc/layers/low_rank.c."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from transformers import PreTrainedModel

from foreword.model.adapters.folder import LoraFolder, Pair
from foreword.model.architectures import is_recurrent, linears, shape
from foreword.model.executors.native.layout import LANES, arranged, parts_of
from foreword.model.executors.native.memories import NativeMemory
from foreword.model.kv.pages import PagePool
from foreword.model.kv.reads import Read, Span
from foreword.native import forward
from foreword.types import Adapter

if TYPE_CHECKING:
    from foreword.model.executors.native.executor import NativeExecutor

Pairs = Sequence[Pair | None]
"""The pairs of the linear layers of a packed matrix; None = it has none."""


class NativeAdapter(Adapter):
    """The pairs of a model, beside each packed matrix of each layer."""

    def __init__(self, folder: LoraFolder, model: PreTrainedModel) -> None:
        super().__init__(folder.key)
        layers = parts_of(model)
        count = len(layers) * len(forward.ADAPTED)
        self.table = (forward.LowRank * count)()
        self.most_sums = 0
        self._held: list[Tensor] = []
        names = {module: name for name, module in model.named_modules()}
        at = 0
        for layer in layers:
            for matrix in forward.ADAPTED:
                parts = linears(layer).get(matrix, ())
                pairs = [folder.pairs.get(names[part]) for part in parts]
                if any(pairs):
                    self._describe(self.table[at], layer, matrix, pairs)
                at += 1

    def _describe(
        self, described: forward.LowRank, layer: Any, matrix: str, pairs: Pairs
    ) -> None:
        """Lay the pairs of a packed matrix out, each in as many sums as the largest."""
        parts = linears(layer)[matrix]
        rank = max(len(pair.down) for pair in pairs if pair is not None)
        count = -(-rank * len(parts) // 4) * 4
        down = torch.zeros(count, shape(parts[0])[1], dtype=torch.float32)
        ups: list[Tensor] = []
        for number, (part, pair) in enumerate(zip(parts, pairs, strict=True)):
            first = number * rank
            # the last column says which sums the outputs of this part take
            outputs, _ = shape(part)
            up = torch.zeros(outputs, rank + 1, dtype=torch.float32)
            up[:, rank] = first
            if pair is not None:
                size = len(pair.down)
                down[first : first + size] = pair.down
                up[:, :size] = pair.scale * pair.up
            ups.append(up)
        joined = arranged(layer, {matrix: ups})[matrix]
        blocks = joined.view(-1, LANES, rank + 1)
        described.rank = rank
        described.count = count
        described.down = self._hold(down)
        described.up = self._hold(blocks[:, :, :rank].transpose(1, 2))
        described.first = self._hold(blocks[:, 0, rank].int())
        self.most_sums = max(self.most_sums, count)

    def _hold(self, tensor: Tensor) -> int:
        """Hold a tensor as long as the adapter; return its address."""
        self._held.append(tensor.contiguous())
        return self._held[-1].data_ptr()


class NativeAdapters(NativeMemory):
    """Adapters, added to the rows of the sequences that name one. A sequence has the
    model alone until it is given an adapter.
    """

    takes = (NativeAdapter,)
    sequences: dict[int, NativeAdapter]

    def opening(
        self, pool: PagePool, id: int, text: Sequence[int], tenant: str
    ) -> None:
        self.close(pool, id)

    def describe(
        self,
        executor: NativeExecutor,
        call: forward.Forward,
        reads: Sequence[Read],
        beyond: int,
    ) -> None:
        sums = 0
        for read in reads:
            adapter = self.sequences.get(read.id)
            if adapter is not None:
                sums = max(sums, adapter.most_sums)
        if sums:
            call.sums, call.halves = executor.scratch.low_rank(sums)
            call.most_sums = sums

    def describe_span(self, described: forward.Span, span: Span) -> None:
        adapter = self.sequences.get(span.read.id)
        if adapter is not None:
            described.adapter = adapter.table


def unplaced(model: PreTrainedModel, folders: Mapping[str, LoraFolder]) -> str | None:
    """Return why the C code cannot add adapters to a model; None if it can."""
    names = {module: name for name, module in model.named_modules()}
    layers = [layer for layer in parts_of(model) if not is_recurrent(layer)]
    placed = {
        names[part]
        for layer in layers
        for matrix in forward.ADAPTED
        for part in linears(layer).get(matrix, ())
    }
    for folder in folders.values():
        for name in folder.pairs:
            if name not in placed:
                return f"backend 'native' adds nothing to {name!r}"
    return None
