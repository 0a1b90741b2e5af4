"""Builds the backend over the cache of transformers, which runs any model."""

from transformers import PreTrainedModel

from foreword.model.architectures import has_vision, is_seq2seq
from foreword.model.executors.cache.backend import CacheBackend
from foreword.model.executors.cache.memories import (
    CacheImages,
    CacheMemory,
    CacheSources,
)
from foreword.model.executors.registry import CACHE, WHOLE, Order
from foreword.model.executors.torch.packed_linear import swap_out, tile_experts


def refused(model: PreTrainedModel) -> None:
    """Refuse no model."""


def build(model: PreTrainedModel, order: Order) -> CacheBackend:
    """Return the backend of a model, which gets back its own layers and attention."""
    swap_out(order.swaps)  # some models compute with a layer's weight themselves
    order.swaps.clear()
    model.set_attn_implementation(order.attention)
    if order.backend == CACHE:
        order.swaps.extend(tile_experts(model))
    memories: list[CacheMemory] = []
    if is_seq2seq(model.config):
        memories.append(CacheSources(model))
    if has_vision(model.config):
        memories.append(CacheImages())
    cache = order.backend != WHOLE
    return CacheBackend(model, order.mode, memories, cache=cache)
