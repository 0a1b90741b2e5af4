"""Memories of the cache executor: images and sources of open sequences."""

from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from transformers import Cache, DynamicCache, EncoderDecoderCache, PreTrainedModel

from foreword.errors import ModelError
from foreword.model.encoder import EncoderMemory, encoded
from foreword.model.kv.memories import SequenceMemory
from foreword.model.kv.reads import Read
from foreword.model.vision.memory import ImageMemory
from foreword.model.vision.rows import ImageRows, Placed, shown
from foreword.native.openmp import all_threads
from foreword.types import Encoded


class CacheMemory(SequenceMemory):
    """A memory of the cache executor. A call that it does not override does nothing."""

    def cache(self) -> Cache | None:
        """Return an empty cache of a sequence; None = the one of decoders."""
        return None

    def inputs(self, id: int, inputs: dict[str, Any]) -> dict[str, Any]:
        """Return the inputs of a forward, given the inputs of a decoder alone."""
        return inputs

    def during(
        self,
        model: PreTrainedModel,
        id: int,
        start: int,
        stop: int,
    ) -> AbstractContextManager[Any]:
        """Add what the model needs to a forward over tokens `start` to `stop`."""
        return nullcontext()


class CacheImages(ImageMemory, CacheMemory):
    """Images, put in place of the embeddings of their placeholders."""

    def give(self, executor: Any, id: int, material: ImageRows) -> None:
        """Set the images of an open sequence, before its first read.

        Raises ModelError where their tokens attend to later ones, which the cache's own
        masks do not allow.
        """
        if material.reach:
            raise ModelError(
                f"cannot read images with {type(executor.model).__name__} on backend "
                "'cache': their tokens attend to later ones. Use text alone"
            )
        super().give(executor, id, material)

    def during(
        self,
        model: PreTrainedModel,
        id: int,
        start: int,
        stop: int,
    ) -> AbstractContextManager[None]:
        images = self.images(id)
        if images is None:
            return nullcontext()
        positions = None
        if images.positions is not None:
            placed = [images.placed(place) for place in range(start, stop)]
            positions = torch.tensor(placed, device=model.device).T[:, None]
        return shown(model, [Placed(images, 0, start, stop)], positions)


class CacheSources(EncoderMemory, CacheMemory):
    """The outputs of encoders. Keys and values of a source are computed by the first
    forward and shared by all later ones.
    """

    def give(self, executor: Any, id: int, material: Sequence[int] | Encoded) -> None:
        with all_threads():
            self.sequences[id] = encoded(self.encoder, material)

    def check(self, read: Read) -> None:
        """Leave it to the model: its first forward needs the source."""

    def cache(self) -> Cache:
        # without the config, whose number of layers is the encoder's in some kinds
        return EncoderDecoderCache(DynamicCache(), DynamicCache())

    def inputs(self, id: int, inputs: dict[str, Any]) -> dict[str, Any]:
        output = self.sequences.get(id)
        source = {} if output is None else {"encoder_outputs": output}
        return {"decoder_input_ids": inputs["input_ids"], **source}
