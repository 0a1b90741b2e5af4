"""Finds the decoder layers of a Hugging Face model, and frees parts of its weights."""

import inspect
from collections.abc import Sequence

import torch
from torch import nn
from transformers import PreTrainedConfig, PreTrainedModel

from foreword.errors import ModelError

LAYERS = ("num_decoder_layers", "decoder_layers", "num_hidden_layers")
"""Names of the number of decoder layers in a config; the first that there is."""


CACHES = ("cache_params", "cache", "past_key_values")
"""Names of the cache among the arguments of a model's forward: of state space models,
and of others from transformers 5.24 on and before.
"""


def cache_argument(model: nn.Module) -> str:
    """Return by which name the forward of a model takes its cache."""
    names = inspect.signature(model.forward).parameters
    return next((name for name in CACHES if name in names), CACHES[-1])


def layer_count(config: PreTrainedConfig) -> int:
    """Return the number of layers of the model's decoder."""
    text = config.get_text_config()
    counts = (getattr(text, name, None) for name in LAYERS)
    return next(count for count in counts if count is not None)


def rank_count(model: PreTrainedModel) -> int | None:
    """Return how many processes transformers splits a model among; None = whole."""
    return getattr(model, "_tp_size", None)


def layers_of(model: PreTrainedModel) -> Sequence[nn.Module]:
    """Return the decoder layers without vision layers, or raise ModelError."""
    count = layer_count(model.config)
    lists = [
        m
        for m in model.get_decoder().modules()
        if isinstance(m, nn.ModuleList) and len(m) == count
    ]
    if not lists:
        raise ModelError(
            f"cannot find the {count} decoder layers of {type(model).__name__}, so "
            "hidden states are unavailable"
        )
    return list(lists[0])


def fill_missing(hf: nn.Module) -> None:
    """Give parameters without storage an empty one, once no backend needs them."""
    for module in hf.modules():
        for name, weight in module.named_parameters(recurse=False):
            if weight.is_meta:
                setattr(
                    module,
                    name,
                    nn.Parameter(
                        torch.empty(0, dtype=weight.dtype), requires_grad=False
                    ),
                )


def has_codes(model: nn.Module) -> bool:
    """Return whether quantized matrices lie beside the weights of a model (`coded`)."""
    return any("coded" in vars(part) for part in model.modules())


def drop_codes(model: nn.Module) -> None:
    """Remove the quantized matrices beside weights, once a backend has read them."""
    for part in model.modules():
        for name in ("coded", "coded_floats"):
            vars(part).pop(name, None)
