"""Skips sublayers of a Hugging Face decoder in a context, as if they returned zeros."""

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from foreword.errors import InvalidRequest, ModelError
from foreword.model.executors.torch.attention import bias_table
from foreword.model.executors.torch.hooks import passed, replaced_forwards
from foreword.model.layers import layers_of

Forwards = dict[nn.Module, Callable[..., Any]]
"""Replacements of the forwards of modules."""


@dataclass(frozen=True, slots=True)
class LayerSkip:
    """Numbers of the layers whose attention or MLP is skipped, which then adds zero."""

    attention: frozenset[int] = frozenset()
    mlp: frozenset[int] = frozenset()

    def __len__(self) -> int:
        return len(self.attention) + len(self.mlp)

    def exit(self, layers: int) -> int:
        """Return after how many of so many layers this exits; 0 if it does not."""
        count = layers - len(self.attention)
        rest = set(range(count, layers))
        exits = rest and self.attention == rest == self.mlp
        return max(0, count) if exits else 0


@dataclass(frozen=True, slots=True)
class Sublayers:
    """Replacements of the forwards of one layer's modules, where its attention or its
    MLP is skipped.
    """

    attention: Forwards
    mlp: Forwards


def sublayers_of(model: PreTrainedModel) -> Sequence[Sublayers]:
    """Return each layer's sublayers, or raise InvalidRequest."""
    try:
        return [_sublayers(layer) for layer in layers_of(model)]
    except (ModelError, AttributeError) as error:
        raise InvalidRequest(
            f"cannot skip sublayers of {type(model).__name__}: it has no list of "
            "layers with an attention and an MLP that can be skipped. Use another "
            "method"
        ) from error


def skipping(
    layers: Sequence[Sublayers], skip: LayerSkip
) -> AbstractContextManager[None]:
    """Make the skipped sublayers return zeros while inside; the residual stays."""
    forwards: Forwards = {}
    for number in skip.attention:
        forwards |= layers[number].attention
    for number in skip.mlp:
        forwards |= layers[number].mlp
    return replaced_forwards(forwards)


def _sublayers(layer: Any) -> Sublayers:
    # as T5: a list of sublayers, with norm and residual
    if isinstance(getattr(layer, "layer", None), nn.ModuleList):
        biased = layer.layer[0].SelfAttention
        return Sublayers(
            {biased: partial(_no_biased_attention, biased)},
            {layer.layer[-1].DenseReluDense: torch.zeros_like},
        )
    attention: Forwards = {layer.self_attn: _no_attention}
    if hasattr(layer, "encoder_attn"):  # as BART: the MLP is in the layer's own forward
        return Sublayers(attention, {layer.fc1: passed, layer.fc2: torch.zeros_like})
    return Sublayers(attention, {layer.mlp: torch.zeros_like})


def _no_attention(hidden_states: Tensor, **_: object) -> tuple[Tensor, None]:
    """Return the result of self_attn, with zeros for the hidden states."""
    return torch.zeros_like(hidden_states), None


def _no_biased_attention(
    module: Any,
    hidden_states: Tensor,
    *,
    position_bias: Tensor | None = None,
    plan: Any = None,
    **_: object,
) -> tuple[Tensor, Tensor | None, None]:
    """Return the result of T5's attention, with the biases that later layers use."""
    if plan is not None:
        bias_table(plan, module, module.layer_idx)
    return torch.zeros_like(hidden_states), position_bias, None
