"""The weights of a layer of a Llama-like model, put together as the C side reads them (native/llama.c), not yet packed.

Knows what the C side wants; names.py knows what models call it.
"""

from __future__ import annotations

from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor
from transformers import PreTrainedModel

from foreword.model import experts, names
from foreword.native.llama import LANES

PANEL = 2 * LANES
"""Outputs that lie side by side in packed weights; values lie in blocks of so many rows."""

MATRICES = ("qkv", "out", "gate_up", "down")
"""What is packed of a layer, and may be coded; the router of experts is packed as well."""
BIASES = {"qkv": "qkv_bias", "out": "out_bias", "gate_up": "up_bias", "down": "down_bias"}


def products(layer: Any) -> dict[str, Float[Tensor, "outputs depth"]]:
    """The matrices of a layer by the names of the C side, as they are before they are packed."""
    weights = {name: [names.matrix(linear) for linear in parts] for name, parts in names.linears(layer).items()}
    halves = [] if names.plain(layer) else weights.pop("gate_up", [])
    # What need not be copied is not: a model's worth of copies stays behind in the allocator.
    found = {name: parts[0] if len(parts) == 1 else torch.cat(parts) for name, parts in weights.items()}
    if (order := names.order(layer)) is not None:
        found["qkv"] = found["qkv"][order]
    if names.routed(layer):
        return found | experts.products(layer)
    if not halves:
        return found
    gate, up = (half.unflatten(0, (-1, LANES)) for half in (halves if len(halves) == 2 else halves[0].chunk(2)))
    return {**found, "gate_up": torch.stack([gate, up], dim=1).flatten(0, 2)}  # half of a panel each


def room(outputs: int) -> int:
    """Outputs that their panels have room for: the last one may not be full."""
    return -(-outputs // LANES) * LANES


def vectors(layer: Any) -> dict[str, Float[Tensor, "*size"]]:
    """The norms, the biases and other small numbers of a layer by the names of the C side, float32."""
    norms = names.norms(layer)
    found = {name: names.scales(norm) for name, norm in (norms | names.head_norms(layer)).items()}
    found |= {f"{name}_bias": norm.bias for name, norm in norms.items() if getattr(norm, "bias", None) is not None}
    for name, parts in names.linears(layer).items():
        if biases := [linear.bias for linear in parts if linear.bias is not None]:
            found[BIASES[name]] = torch.cat(biases)
    if "qkv_bias" in found and (order := names.order(layer)) is not None:
        found["qkv_bias"] = found["qkv_bias"][order]
    if hasattr(layer, "conv"):
        found["taps"] = layer.conv.conv.weight.squeeze(1).T
    if hasattr(layer, "linear_attn"):
        mixer = layer.linear_attn
        found |= {
            "taps": mixer.conv1d.weight.squeeze(1).T,
            "decay": mixer.A_log.float().exp(),
            "step_bias": mixer.dt_bias,
            "gated_norm": mixer.norm.weight,
        }
    if names.routed(layer):
        found |= experts.vectors(layer)
    return {name: vector.detach().float() for name, vector in found.items()}


def around(model: PreTrainedModel) -> dict[str, Float[Tensor, "size"]]:
    """The small numbers of what comes after all layers, by the names of the C side, float32."""
    norm, bias = names.last_norm(model), names.mouth(model).bias
    found = {"norm": names.scales(norm)}
    if getattr(norm, "bias", None) is not None:
        found["norm_bias"] = norm.bias
    if bias is not None:
        found["head_bias"] = torch.cat([bias, bias.new_zeros(room(len(bias)) - len(bias))])
    return {name: vector.detach().float() for name, vector in found.items()}
