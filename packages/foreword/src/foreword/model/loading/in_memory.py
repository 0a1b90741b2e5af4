"""Models in memory: twins of them, and models that are lent and stay unchanged."""

from collections.abc import Iterator
from contextlib import contextmanager
from copy import deepcopy
from itertools import chain
from typing import Any

import torch
from torch import nn
from transformers import PreTrainedModel

from foreword.model.executors.registry import Capability
from foreword.model.executors.torch.packed_linear import PackedLinear, Swap, swap_out
from foreword.model.model import Model


def twin(model: PreTrainedModel) -> PreTrainedModel:
    """Return a copy of a model's modules and config that shares its weights."""
    packed = (
        layer.packed for layer in model.modules() if isinstance(layer, PackedLinear)
    )
    shared = {
        id(tensor): tensor
        for tensor in chain(model.parameters(), model.buffers(), packed)
    }
    return deepcopy(model, shared)


def _attention(model: PreTrainedModel) -> list[tuple[Any, str | None]]:
    """Return the config of each part of a model, with its attention implementation."""
    configs: dict[int, Any] = {}
    pending = [
        part.config for part in model.modules() if isinstance(part, PreTrainedModel)
    ]
    while pending:
        config = pending.pop()
        configs[id(config)] = config
        parts = (getattr(config, name, None) for name in config.sub_configs)
        pending += [
            part for part in parts if part is not None and id(part) not in configs
        ]
    return [
        (config, config._attn_implementation_internal) for config in configs.values()
    ]


def in_bfloat16(model: PreTrainedModel) -> PreTrainedModel:
    """Return a twin with its float32 weights in bfloat16, as checkpoints are loaded
    before they are quantized.
    """
    rounded: dict[int, nn.Parameter] = {}
    for module in model.modules():
        for name, weight in list(module.named_parameters(recurse=False)):
            if weight.dtype != torch.float32:
                continue
            if id(weight) not in rounded:  # tied weights stay tied
                rounded[id(weight)] = nn.Parameter(
                    weight.detach().bfloat16(), requires_grad=False
                )
            setattr(module, name, rounded[id(weight)])
    return model


@contextmanager
def borrow(hf: PreTrainedModel, known: Capability | None = None) -> Iterator[Model]:
    """Yield a Model over the caller's model, whose attention, layers and training modes
    are restored on exit.

    `known` is the capability of an earlier borrow of a model built the same way; it
    saves the probe.
    """
    implementations = _attention(hf)
    modes = [(module, module.training) for module in hf.modules()]
    swaps: list[Swap] = []
    try:
        yield Model(hf, known=known, swaps=swaps)
    finally:
        swap_out(swaps)
        for config, implementation in implementations:
            config._attn_implementation_internal = implementation
        for module, training in modes:
            module.training = training
