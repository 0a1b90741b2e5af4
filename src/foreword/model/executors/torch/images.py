"""The images of open sequences in forwards of the torch executor."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext

import torch
from transformers import PreTrainedModel

from foreword.model.executors.torch.memories import TorchMemory
from foreword.model.kv.reads import Span
from foreword.model.vision.memory import ImageMemory
from foreword.model.vision.rows import Placed, shown


class TorchImages(ImageMemory, TorchMemory):
    """Images, put in place of the embeddings of their placeholders."""

    def empty(self) -> TorchImages:
        return TorchImages()

    def during(
        self, model: PreTrainedModel, spans: Sequence[Span], rows: int
    ) -> AbstractContextManager[None]:
        """Put the images of these sequences into a forward of so many rows."""
        images = {
            span.start: self.images[span.read.id]
            for span in spans
            if span.read.id in self.images
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
            return shown(model, parts, None)
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
        positions = torch.tensor(placed, device=model.device).T[:, None]
        return shown(model, parts, positions)
