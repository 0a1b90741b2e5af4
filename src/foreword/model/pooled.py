"""Drives a Hugging Face model through our attention function and our pool: many sequences packed in one forward.

Knows packing; knows nothing about drafting or rules.
"""

from __future__ import annotations

from collections.abc import Sequence as List

import torch
from jaxtyping import Float
from torch import Tensor
from transformers import PreTrainedModel

from foreword.errors import ModelError
from foreword.model.cache import Extent, KVPool
from foreword.model.driver import Mode
from foreword.model.linear import MIN_ROWS
from foreword.model.listen import listening, spoken
from foreword.model.plan import Plan, Read, Span
from foreword.native.openmp import all_threads


class PooledDriver:
    """Packs the tokens of all sequences as one row of length `tokens`; positions and the plan keep them apart."""

    def __init__(self, model: PreTrainedModel, mode: Mode = Mode.TREE) -> None:
        self.mode = mode
        self._model = model
        self._device = next(model.parameters()).device
        self._pool = KVPool()
        self._extents: dict[int, Extent] = {}
        self.spare = 0
        """Places to keep beyond every sequence's capacity, for a drafter that guesses in the same memory."""
        # These rotary embeddings look at the longest position of a forward, so company would change a sequence's text.
        self._alone = _rope_type(model) in ("dynamic", "longrope")
        self.asked: dict[int, int | None] = {}

    def open(self, id: int, capacity: int) -> None:
        self._extents[id] = self._pool.reserve(capacity + self.spare)

    def close(self, id: int) -> None:
        if id in self._extents:
            self._pool.release(self._extents.pop(id))

    def read(self, reads: List[Read]) -> Float[Tensor, "kept vocab"]:
        with all_threads():
            if self._alone and len(reads) > 1:
                return torch.cat([self._forward([read]) for read in reads])
            return self._forward(reads)

    def hear(
        self, reads: List[Read], layers: List[int]
    ) -> tuple[Float[Tensor, "kept vocab"], Float[Tensor, "rows features"]]:
        parts = [[read] for read in reads] if self._alone else [reads]
        logits, heard = zip(*[self._heard(part, layers) for part in parts], strict=True)
        return torch.cat(logits), torch.cat(heard)

    @torch.inference_mode()
    def speak(self, hidden: Float[Tensor, "rows hidden"]) -> Float[Tensor, "rows vocab"]:
        with all_threads():
            return spoken(self._model, hidden)

    def _heard(self, reads: List[Read], layers: List[int]) -> tuple[Tensor, Tensor]:
        with listening(self._model, layers) as heard:
            logits = self.read(reads)
        return logits, heard()[: sum(len(read.tokens) for read in reads)]  # without the padding of a forward

    def move(self, id: int, source: list[int], start: int) -> None:
        base = self._extents[id].start
        pairs = [(base + held, base + start + i) for i, held in enumerate(source) if held != start + i]
        if pairs:
            moves = torch.tensor(pairs, device=self._device)
            self._pool.move(moves[:, 0], moves[:, 1])

    @torch.inference_mode()
    def _forward(self, reads: List[Read]) -> Float[Tensor, "kept vocab"]:
        tokens, positions, kept, plan = self._pack(reads)
        count = len(kept)
        tokens += tokens[-1:] * (MIN_ROWS - len(tokens))
        positions += positions[-1:] * (MIN_ROWS - len(positions))
        kept += (kept[-1:] or [0]) * (MIN_ROWS - count)
        packed = torch.tensor([tokens, positions], device=self._device)
        output = self._model(
            input_ids=packed[:1],
            position_ids=packed[1:],
            use_cache=False,
            logits_to_keep=torch.tensor(kept, device=self._device),
            plan=plan,
        )
        self.asked = plan.asked
        return output.logits[0, :count]

    def _pack(self, reads: List[Read]) -> tuple[list[int], list[int], list[int], Plan]:
        tokens: list[int] = []
        positions: list[int] = []
        rows: list[int] = []
        kept: list[int] = []
        spans: list[Span] = []
        for read in reads:
            extent, depths = self._extents[read.id], read.depths
            start, stop = len(tokens), len(tokens) + len(read.tokens)
            if read.start + len(read.tokens) > extent.capacity:
                raise ModelError(f"sequence {read.id} outgrew its room of {extent.capacity} tokens")
            tokens += read.tokens
            positions += [read.past + depth for depth in depths]
            rows += range(extent.start + read.start, extent.start + read.start + len(read.tokens))
            kept += range(stop - read.keep, stop)
            spans.append(Span(start, stop, extent, read))
        plan = Plan(self._pool, tuple(spans), torch.tensor(rows, device=self._device))
        return tokens, positions, kept, plan


def _rope_type(model: PreTrainedModel) -> str:
    parameters = getattr(model.config.get_text_config(), "rope_parameters", None) or {}
    return str(parameters.get("rope_type", "default"))
