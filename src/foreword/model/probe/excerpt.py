"""Provides the first layers of a model in float32, to check a backend without rounding
that could hide errors.
"""

from __future__ import annotations

import copy
from typing import Any

from torch import nn
from transformers import PreTrainedModel

from foreword.model.encoder import is_seq2seq
from foreword.model.layers import layers_of, rank_count

SMALL = 250_000_000
"""Parameters. Up to this size, all layers are taken."""


def excerpt(model: PreTrainedModel) -> PreTrainedModel | None:
    """Return the fewest first layers that include every kind of layer; None where the
    layers cannot be found.

    An encoder-decoder is taken whole, or not at all; a model that is split among
    processes cannot be copied.
    """
    if rank_count(model) is not None:
        return None
    try:
        layers, config = layers_of(model), model.config.get_text_config()
        count = len(layers)
        small = sum(part.numel() for part in model.parameters()) <= SMALL
        if is_seq2seq(model.config) and not small:
            return None
        kept = count if small else _enough(layers, config)
        memo: dict[int, Any] = {}
        if kept < count:
            whole = next(
                m
                for m in model.modules()
                if isinstance(m, nn.ModuleList) and len(m) and m[0] is layers[0]
            )
            memo[id(whole)] = nn.ModuleList(copy.deepcopy(layers[:kept], memo))
        twin = copy.deepcopy(model, memo).float()
        if kept < count:
            _shorten(twin.config.get_text_config(), count, kept)
    except Exception:  # noqa: BLE001 - the model itself is checked then
        return None
    return twin


def _enough(layers: Any, config: Any) -> int:
    kinds = getattr(config, "layer_types", None) or [None] * len(layers)
    signatures = [
        (kind, tuple(type(module).__name__ for module in layer.modules()))
        for kind, layer in zip(kinds, layers, strict=True)
    ]
    return 1 + max(signatures.index(one) for one in set(signatures))


def _shorten(config: Any, count: int, kept: int) -> None:
    for name, value in list(vars(config).items()):
        if isinstance(value, list) and len(value) == count:
            setattr(config, name, value[:kept])
    config.num_hidden_layers = kept
