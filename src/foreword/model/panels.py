"""The weights of a layer of a Llama-like model, put together as the C side reads them (native/llama.c), not yet packed.

Knows the names on both sides; knows nothing about drivers.
"""

from __future__ import annotations

from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

LANES = 16
"""Outputs that one vector holds; keys lie in blocks of so many rows."""
PANEL = 2 * LANES
"""Outputs that lie side by side in packed weights; values lie in blocks of so many rows."""


def products(layer: Any) -> dict[str, Float[Tensor, "outputs depth"]]:
    """The matrices of a layer by the names of the C side, as they are before they are packed."""
    attention, mlp = layer.self_attn, layer.mlp
    gate, up = (p.weight.reshape(-1, LANES, p.in_features) for p in (mlp.gate_proj, mlp.up_proj))
    return {
        "qkv": torch.cat([attention.q_proj.weight, attention.k_proj.weight, attention.v_proj.weight]),
        "out": attention.o_proj.weight,
        "gate_up": torch.stack([gate, up], dim=1).flatten(0, 2),  # half of a panel each
        "down": mlp.down_proj.weight,
    }


def vectors(layer: Any) -> dict[str, Float[Tensor, "size"]]:
    """The norms and biases of a layer by the names of the C side, float32."""
    attention = layer.self_attn
    found = {"norm": layer.input_layernorm.weight, "mlp_norm": layer.post_attention_layernorm.weight}
    if attention.q_proj.bias is not None:
        found["qkv_bias"] = torch.cat([attention.q_proj.bias, attention.k_proj.bias, attention.v_proj.bias])
    if getattr(attention, "q_norm", None) is not None:
        found |= {"query_norm": attention.q_norm.weight, "key_norm": attention.k_norm.weight}
    return {name: vector.detach().float() for name, vector in found.items()}
