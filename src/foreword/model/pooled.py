"""Drives a Hugging Face model through our attention function and our pool: many sequences packed in one forward.

Knows Hugging Face models; knows nothing about drafting or rules.
"""

from __future__ import annotations

from collections.abc import Sequence as List
from contextlib import nullcontext

import torch
from jaxtyping import Float
from torch import Tensor
from transformers import PreTrainedModel

from foreword.model.driver import Mode
from foreword.model.lengths import length_of
from foreword.model.linear import MIN_ROWS, Tiles, unpacked
from foreword.model.listen import Overheard
from foreword.model.packing import Packing
from foreword.model.plan import Read
from foreword.native.openmp import all_threads

EVEN = 32
"""Rows of a forward are a multiple of this where a router gives a few numbers a row: what is left of a tensor after
registers of 32 numbers gets its sigmoid from another function, whose bits differ."""


class PooledDriver(Packing, Overheard):
    """Packs the tokens of all sequences as one row of length `tokens`; positions and the plan keep them apart."""

    def __init__(self, model: PreTrainedModel, mode: Mode = Mode.TREE) -> None:
        super().__init__(next(model.parameters()).device)
        self.mode = mode
        self._model = model
        self._length = length_of(model)
        self._tiled = unpacked(model)
        self.asked: dict[int, int | None] = {}

    def read(self, reads: List[Read]) -> Float[Tensor, "kept vocab"]:
        with all_threads():
            return torch.cat([self._forward(part) for part in self._forwards(reads)])

    def _forwards(self, reads: List[Read]) -> List[List[Read]]:
        return [reads] if self._length is None else [[part] for read in reads for part in self._length.parts(read)]

    def _own(self, rows: Float[Tensor, "heard features"], count: int) -> Float[Tensor, "rows features"]:
        return rows[:count]  # what comes after them is padding

    @torch.inference_mode()
    def _forward(self, reads: List[Read]) -> Float[Tensor, "kept vocab"]:
        rows = self._pack(reads)
        tokens, positions, kept, count = rows.tokens, rows.positions, rows.kept, len(rows.kept)
        spare = -len(tokens) % (EVEN if self._tiled else MIN_ROWS)
        tokens += tokens[-1:] * spare
        positions += positions[-1:] * spare
        kept += (kept[-1:] or [0]) * (MIN_ROWS - count)
        packed = torch.tensor([tokens, positions], device=self._device)
        if self._length is not None:
            self._length.forget()
        with Tiles() if self._tiled else nullcontext():
            output = self._model(
                input_ids=packed[:1],
                position_ids=packed[1:],
                use_cache=False,
                logits_to_keep=torch.tensor(kept, device=self._device),
                plan=rows.plan,
            )
        self.asked = rows.plan.asked
        return output.logits[0, :count]
