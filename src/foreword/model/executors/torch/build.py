"""Builds the pool backend of a model."""

from __future__ import annotations

from torch import nn
from transformers import PreTrainedModel

from foreword.errors import ModelError
from foreword.model.architectures import body
from foreword.model.encoder import is_seq2seq
from foreword.model.executors.registry import Order
from foreword.model.executors.torch.attention import NAME
from foreword.model.executors.torch.backend import PoolBackend
from foreword.model.executors.torch.images import TorchImages
from foreword.model.executors.torch.memories import TorchMemory
from foreword.model.executors.torch.packed_linear import swap_in
from foreword.model.executors.torch.sources import TorchSources
from foreword.model.layers import layers_of, rank_count
from foreword.model.vision.rows import has_vision


def refused(model: PreTrainedModel) -> str | None:
    """Return why the pool cannot run this model; None if it may."""
    if is_seq2seq(model.config) and not model._can_set_attn_implementation():
        return (
            "its attention cannot be replaced: it is not called through transformers' "
            "AttentionInterface"
        )
    return stateful(model)


def build(model: PreTrainedModel, order: Order) -> PoolBackend:
    """Return the pool backend of a model, and give the model its attention."""
    order.swaps.extend(swap_in(model))
    memories: list[TorchMemory] = []
    if has_vision(model.config):
        memories.append(TorchImages())
    if is_seq2seq(model.config):
        memories.append(TorchSources(model, order.attention))
        model.set_attn_implementation(NAME)
    else:
        body(model).set_attn_implementation(NAME)  # vision parts keep their own
    if rank_count(model) is not None:
        from foreword.model.parallel.backend import ParallelBackend  # seldom needed

        return ParallelBackend(model, order.mode)
    return PoolBackend(model, order.mode, memories)


def stateful(model: PreTrainedModel) -> str | None:
    """Return why the pool cannot run this model; None if it can.

    A recurrent state cannot be masked like a key.
    """
    try:
        parts = [part for layer in layers_of(model) for part in layer.modules()]
    except (ModelError, AttributeError, NotImplementedError):
        parts = list(model.modules())
    kinds = (
        type(part).__name__
        for part in parts
        if isinstance(part, nn.Conv1d) or _is_recurrent(type(part).__name__)
    )
    kind = next(kinds, None)
    if kind is not None:
        return (
            f"its layers keep a recurrent state ({kind}), and the pool holds only keys "
            "and values"
        )
    index = next(
        (type(part).__name__ for part in parts if "Indexer" in type(part).__name__),
        None,
    )
    if index is not None:
        return f"its attention selects keys by an index ({index})"
    router = next((type(part).__name__ for part in parts if _drops_tokens(part)), None)
    return (
        None
        if router is None
        else f"its experts drop tokens beyond a number of them in a forward ({router})"
    )


def _drops_tokens(part: nn.Module) -> bool:
    return (
        hasattr(part, "expert_capacity")
        and getattr(part, "moe_eval_capacity_token_fraction", 0) < 1
    )


RECURRENT = (
    "Mamba",
    "DeltaNet",
    "Recurrent",
    "ShortConv",
    "LinearAttention",
    "Lightning",
)
"""Parts of the class names of layers that keep a recurrent state."""


def _is_recurrent(name: str) -> bool:
    return any(word in name for word in RECURRENT)
