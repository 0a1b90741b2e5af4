"""Provides the pool backend: a Hugging Face model with our attention function, many
sequences packed in one forward.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext

import torch
from jaxtyping import Float, Int
from torch import Tensor
from transformers import PreTrainedModel

from foreword.model.architectures import body, lm_head
from foreword.model.backend import Mode
from foreword.model.pool.dynamic_rope import dynamic_rope_of
from foreword.model.pool.hooks import CapturesHiddenStates
from foreword.model.pool.packed_linear import MIN_ROWS, Tiles, unpacked
from foreword.model.pool.packing import Packing
from foreword.model.pool.plan import Plan, Reach, Read, Span
from foreword.model.vision.rows import ImageRows, Placed, shown
from foreword.native.openmp import all_threads

EVEN = 32
"""Rows of a forward are a multiple of this for models with unpacked weights, such as
routers. torch computes the sigmoid of the elements left over after registers of 32 with
another function, whose bits differ."""


class PoolBackend(Packing, CapturesHiddenStates):
    """A backend that packs the tokens of all sequences in one row; positions and the
    plan keep them apart.
    """

    def __init__(
        self, model: PreTrainedModel, mode: Mode = Mode.TREE, *, adjacent: bool = False
    ) -> None:
        """`adjacent`: sequences reserve their pages when they are opened.
        Length-dependent models always do.

        Their rows depend on the forwards that read them, so a text that is read again
        may differ.
        """
        self._rope = dynamic_rope_of(model)
        super().__init__(
            next(model.parameters()).device, adjacent=adjacent or self._rope is not None
        )
        self.mode = mode
        self._model = model
        self._tiled = any(
            unpacked(part) for part in (body(model), lm_head(model)) if part is not None
        )
        self._images: dict[int, ImageRows] = {}
        self.windows: dict[int, int | None] = {}
        """Sliding window that each layer passed to attention in the last forward."""

    def see(self, id: int, images: ImageRows) -> None:
        """Set the images of an open sequence, before its first read."""
        self._images[id] = images

    def close(self, id: int) -> None:
        super().close(id)
        self._images.pop(id, None)

    def read(self, reads: Sequence[Read]) -> Float[Tensor, "kept vocab"]:
        with all_threads():
            return torch.cat([self._forward(part) for part in self._forwards(reads)])

    def _forwards(self, reads: Sequence[Read]) -> Sequence[Sequence[Read]]:
        if self._rope is None:
            return [reads]
        return [[part] for read in reads for part in self._rope.parts(read)]

    def _own_rows(
        self, rows: Float[Tensor, "captured features"], count: int
    ) -> Float[Tensor, "rows features"]:
        return rows[:count]  # the rest is padding

    @torch.inference_mode()
    def _forward(self, reads: Sequence[Read]) -> Float[Tensor, "kept vocab"]:
        rows = self._pack(reads)
        tokens = rows.tokens
        positions = rows.positions
        kept = rows.kept
        count = len(rows.kept)
        spare = -len(tokens) % (EVEN if self._tiled else MIN_ROWS)
        tokens += tokens[-1:] * spare
        positions += positions[-1:] * spare
        kept += (kept[-1:] or [0]) * (MIN_ROWS - count)
        packed = torch.tensor([tokens, positions], device=self._device)
        if self._rope is not None:
            self._rope.forget()
        with (
            Tiles() if self._tiled else nullcontext(),
            self._shown(rows.plan.spans, len(tokens)),
        ):
            logits = self._logits(packed, kept, rows.plan)
        self.windows = rows.plan.windows
        self._note(reads)
        return logits[:count]

    def _logits(
        self, packed: Int[Tensor, "2 rows"], kept: list[int], plan: Plan
    ) -> Float[Tensor, "kept vocab"]:
        """Run the model over the tokens and positions; return the logits of the kept
        rows.
        """
        output = self._model(
            input_ids=packed[:1],
            position_ids=packed[1:],
            use_cache=False,
            logits_to_keep=torch.tensor(kept, device=self._device),
            plan=plan,
        )
        return output.logits[0]

    def _shown(self, spans: Sequence[Span], rows: int) -> AbstractContextManager[None]:
        """Put the images of these sequences into a forward of so many rows."""
        images = {
            span.start: self._images[span.read.id]
            for span in spans
            if span.read.id in self._images
        }
        if not images:
            return nullcontext()
        parts = [
            Placed(images[span.start], span.start, span.read.start, span.length)
            for span in spans
            if span.start in images
        ]
        given = [one.positions for one in images.values() if one.positions is not None]
        if not given:
            return shown(self._model, parts, None)
        axes = len(given[0])
        placed: list[list[int]] = []
        for span in spans:
            for depth in span.read.depths:
                index = span.read.past + depth
                if span.start in images:
                    placed.append(images[span.start].placed(index))
                else:
                    placed.append([index] * axes)
        placed += placed[-1:] * (rows - len(placed))
        return shown(
            self._model, parts, torch.tensor(placed, device=self._device).T[:, None]
        )

    def _visible(self, id: int) -> Reach:
        return self._images[id].reach if id in self._images else {}

    def _keys(self, read: Read) -> list[int]:
        return (
            self._images[read.id].keys_of(read.start, read.tokens)
            if read.id in self._images
            else read.tokens
        )
