"""The weights of a Llama-like layer under the names and in the order of csrc/forward.c,
before packing.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor
from transformers import PreTrainedModel

from foreword.model import architectures
from foreword.model.layers import layers_of
from foreword.native import forward
from foreword.native.forward import LANES

PANEL = 2 * LANES
"""Outputs side by side in a panel of packed weights; also the rows in a block of
values.
"""

MATRICES = ("qkv", "out", "cross_q", "cross_out", "gate_up", "down")
"""Packed matrices that may be quantized; the router stays bfloat16."""
BIASES = {"gate_up": "up_bias"} | {
    name: f"{name}_bias" for name in MATRICES if name != "gate_up"
}


def parts_of(model: PreTrainedModel) -> Sequence[Any]:
    """Return the parts of each layer of the decoder: the layer itself, except in an
    encoder-decoder.
    """
    layers = layers_of(model)
    if not architectures.is_seq2seq(model.config):
        return layers
    from foreword.model.executors.native.cross import DecoderLayer

    return [DecoderLayer(layer) for layer in layers]


def products(layer: Any) -> dict[str, Float[Tensor, "outputs depth"]]:
    """Return the matrices of a layer under the names of the C struct, not yet
    packed.
    """
    weights = {
        name: [architectures.matrix(linear) for linear in parts]
        for name, parts in architectures.linears(layer).items()
    }
    matrices = arranged(layer, weights)
    if not architectures.routed(layer):
        return matrices
    from foreword.model.executors.native import experts

    return matrices | experts.products(layer)


def arranged(
    layer: Any, weights: dict[str, list[Tensor]]
) -> dict[str, Float[Tensor, "outputs depth"]]:
    """Return each matrix of a layer, with the outputs of its linear layers in the order
    of the C code.
    """
    halves = [] if architectures.plain(layer) else weights.pop("gate_up", [])
    # Copy only if needed: the allocator keeps the memory of copies, a whole model's
    # worth.
    matrices = {
        name: parts[0] if len(parts) == 1 else torch.cat(parts)
        for name, parts in weights.items()
    }
    order = architectures.order(layer) if "qkv" in matrices else None
    if order is not None:
        matrices["qkv"] = matrices["qkv"][order]
    if not halves:
        return matrices
    gate, up = (
        half.unflatten(0, (-1, LANES))
        for half in (halves if len(halves) == 2 else halves[0].chunk(2))
    )
    # half of a panel each
    return {**matrices, "gate_up": torch.stack([gate, up], dim=1).flatten(0, 2)}


def matrices_of(described: forward.Layer) -> list[str]:
    """Return the names of the matrices that a described layer has."""
    return [name for name in MATRICES if getattr(described, name)]


def room(outputs: int) -> int:
    """Return the outputs that fit in the panels; the last panel may not be full."""
    return -(-outputs // LANES) * LANES


def vectors(layer: Any) -> dict[str, Float[Tensor, "*size"]]:
    """Return norms, biases and other vectors of a layer under the names of the C
    struct, float32.
    """
    norms = architectures.norms(layer)
    result = {
        name: architectures.scales(norm)
        for name, norm in (norms | architectures.head_norms(layer)).items()
    }
    result |= {
        f"{name}_bias": norm.bias
        for name, norm in norms.items()
        if getattr(norm, "bias", None) is not None
    }
    for name, parts in architectures.linears(layer).items():
        if any(linear.bias is not None for linear in parts):
            result[BIASES[name]] = torch.cat([_bias(linear) for linear in parts])
    if "qkv_bias" in result and (order := architectures.order(layer)) is not None:
        result["qkv_bias"] = result["qkv_bias"][order]
    if not architectures.is_recurrent(layer) and architectures.has(
        architectures.attention(layer), "sinks"
    ):
        result["sinks"] = architectures.attention(layer).sinks
    if hasattr(layer, "conv"):
        result["taps"] = layer.conv.conv.weight.squeeze(1).T
    if hasattr(layer, "linear_attn"):
        mixer = layer.linear_attn
        result |= {
            "taps": mixer.conv1d.weight.squeeze(1).T,
            "decay": mixer.A_log.float().exp(),
            "step_bias": mixer.dt_bias,
            "gated_norm": mixer.norm.weight,
        }
    if architectures.routed(layer):
        from foreword.model.executors.native import experts

        result |= experts.vectors(layer)
    return {name: vector.detach().float() for name, vector in result.items()}


def _bias(linear: Any) -> Float[Tensor, "outputs"]:
    return (
        torch.zeros(architectures.shape(linear)[0], dtype=torch.float32)
        if linear.bias is None
        else linear.bias
    )


def around(model: PreTrainedModel) -> dict[str, Float[Tensor, "size"]]:
    """Return the final norm and LM head bias under the names of the C struct,
    float32.
    """
    norm, bias = architectures.last_norm(model), architectures.lm_head(model).bias
    result = {"norm": architectures.scales(norm)}
    if getattr(norm, "bias", None) is not None:
        result["norm_bias"] = norm.bias
    if bias is not None:
        result["head_bias"] = torch.cat(
            [bias, bias.new_zeros(room(len(bias)) - len(bias))]
        )
    return {name: vector.detach().float() for name, vector in result.items()}
