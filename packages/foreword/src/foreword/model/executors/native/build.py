"""Builds the native backend of a model: what its sequences have beside keys and values
decides on the memories.
"""

from __future__ import annotations

from typing import Any

from transformers import PreTrainedModel

from foreword.model.architectures import (
    body,
    has_vision,
    is_recurrent,
    is_seq2seq,
)
from foreword.model.executors.native import supported
from foreword.model.executors.native.angles import Angles
from foreword.model.executors.native.backend import NativeBackend
from foreword.model.executors.native.layout import parts_of
from foreword.model.executors.native.memories import NativeMemory
from foreword.model.executors.native.rotary import query_scale, rotaries_of
from foreword.model.executors.registry import Order


def refused(model: PreTrainedModel) -> str | None:
    """Return why the C code cannot run this model; None if it can."""
    if is_seq2seq(model.config):
        from foreword.model.executors.native.sources import refused_decoder

        return refused_decoder(model)
    reason = supported.refused(model)
    if reason is not None or not (states := _recurrent_layers(model)):
        return reason
    from foreword.model.executors.native import recurrent

    return recurrent.refused(states)


def build(
    model: PreTrainedModel,
    order: Order | None = None,
) -> NativeBackend:
    """Return the native backend of a model that `refused` accepts."""
    states = _recurrent_layers(model)
    rotaries = rotaries_of(model)
    memories: list[NativeMemory] = []
    biases: list[Any] = []
    scale = 0.0
    if has_vision(model.config):
        from foreword.model.executors.native.images import NativeImages

        factor = getattr(body(model), "embedding_multiplier", 1)
        memories.append(NativeImages(rotaries, len(rotaries), factor))
    if is_seq2seq(model.config):
        from foreword.model.executors.native.sources import NativeSources, head_scale

        memories.append(NativeSources(model))
        scale = head_scale(model)
        biases = [layer.compute_bias for layer in parts_of(model)]
    if states:
        from foreword.model.executors.native import recurrent

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


def _recurrent_layers(model: PreTrainedModel) -> list[Any]:
    return [layer for layer in parts_of(model) if is_recurrent(layer)]
