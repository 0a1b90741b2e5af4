"""Builds the native backend of a model: what its sequences have beside keys and values
decides on the memories.
"""

from __future__ import annotations

from typing import Any

from transformers import PreTrainedModel

from foreword.model.architectures import body
from foreword.model.encoder import is_seq2seq
from foreword.model.executors.native import recurrent, sources, supported
from foreword.model.executors.native.angles import Angles
from foreword.model.executors.native.backend import NativeBackend
from foreword.model.executors.native.cross import parts_of
from foreword.model.executors.native.images import NativeImages
from foreword.model.executors.native.memories import NativeMemory
from foreword.model.executors.native.rotary import query_scale, rotaries_of
from foreword.model.executors.registry import Order
from foreword.model.vision.rows import has_vision


def refused(model: PreTrainedModel) -> str | None:
    """Return why the C code cannot run this model; None if it can."""
    if is_seq2seq(model.config):
        return sources.refused(model)
    return supported.refused(model) or recurrent.refused(model)


def build(
    model: PreTrainedModel,
    order: Order | None = None,
) -> NativeBackend:
    """Return the native backend of a model that `refused` accepts."""
    states = recurrent.recurrent_layers(model)
    rotaries = rotaries_of(model)
    memories: list[NativeMemory] = []
    biases: list[Any] = []
    scale = 0.0
    if has_vision(model.config):
        factor = getattr(body(model), "embedding_multiplier", 1)
        memories.append(NativeImages(rotaries, len(rotaries), factor))
    if is_seq2seq(model.config):
        memories.append(sources.NativeSources(model))
        scale = sources.head_scale(model)
        biases = [layer.compute_bias for layer in parts_of(model)]
    if states:
        sizes = recurrent.sizes_of(states[0])
        memories.append(recurrent.StateMemory(sizes, len(states)))
    factors = query_scale(model.config.get_text_config())
    backend = NativeBackend(
        model,
        Angles(rotaries, factors, biases),
        memories,
        owned=order is not None and order.owned,
        keeps_embeddings=is_seq2seq(model.config),
        head_scale=scale,
    )
    backend.copies = not states
    backend.pool.prefixes.recurrent = bool(states)
    return backend
