"""The weights of a layer of a Llama-like model, put together as the C side reads them (native/llama.c), not yet packed.

Knows the names on both sides; knows nothing about drivers.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn
from transformers import PreTrainedModel

from foreword.model import experts
from foreword.native.llama import LANES

PANEL = 2 * LANES
"""Outputs that lie side by side in packed weights; values lie in blocks of so many rows."""

MATRICES = ("qkv", "out", "gate_up", "down")
"""What is packed of a layer, and may be coded; the router of experts is packed as well."""
AROUND = {
    "norm": "input_layernorm", "said_norm": "post_attention_layernorm",
    "mlp_norm": "pre_feedforward_layernorm", "mlp_said_norm": "post_feedforward_layernorm",
}  # fmt: skip
"""Norms of a layer that norms what its halves say, and perhaps what they read."""
AROUND_ONE = ("Gemma", "Qwen3_5RMSNorm", "Qwen3_5MoeRMSNorm")
"""How the names of norms begin that keep what is to be added to 1."""
BEFORE = {"norm": "input_layernorm", "mlp_norm": "post_attention_layernorm"}
OPERATORS = {"norm": "operator_norm", "mlp_norm": "ffn_norm"}
"""Those of a layer that only norms what they read, by either name."""
MIXERS = ("self_attn", "linear_attn", "conv")
"""What a layer calls the half that looks at other tokens."""


def body(model: PreTrainedModel) -> Any:
    """What reads the text, embeddings and last norm included: a model without its head, and without what sees."""
    return model.get_decoder()


def remembers(layer: Any) -> bool:
    """It has no attention, but remembers in a state (native/recurrent.c)."""
    return not hasattr(layer, "self_attn")


def linears(layer: Any) -> dict[str, tuple[nn.Linear, ...]]:
    """The modules whose outputs lie one after the other in each matrix of the C side; some models join them as well.

    Those of experts are not among them.
    """
    mixer = getattr(layer, next(filter(partial(hasattr, layer), MIXERS)))
    mixing = {
        "qkv": _first(
            mixer, "qkv_proj", "q_proj k_proj v_proj", "in_proj", "in_proj_qkv in_proj_z in_proj_b in_proj_a"
        ),
        "out": _first(mixer, "o_proj", "out_proj"),
    }
    if experts.routed(layer):
        return mixing
    mlp = experts.block(layer)
    return {
        **mixing,
        "gate_up": _first(mlp, "gate_up_proj", "gate_proj up_proj", "w1 w3"),
        "down": _first(mlp, "down_proj", "w2"),
    }


def _first(owner: Any, *names: str) -> tuple[nn.Linear, ...]:
    """The first of these that the owner has; several modules in place of one are named in one string."""
    found = next(parts for parts in map(str.split, names) if hasattr(owner, parts[0]))
    return tuple(getattr(owner, part) for part in found)


def products(layer: Any) -> dict[str, Float[Tensor, "outputs depth"]]:
    """The matrices of a layer by the names of the C side, as they are before they are packed."""
    weights = {name: [linear.weight for linear in parts] for name, parts in linears(layer).items()}
    halves = weights.pop("gate_up", ())
    # What need not be copied is not: a model's worth of copies stays behind in the allocator.
    found = {name: parts[0] if len(parts) == 1 else torch.cat(parts) for name, parts in weights.items()}
    if not halves:
        return found | experts.products(layer)
    gate, up = (half.unflatten(0, (-1, LANES)) for half in (halves if len(halves) == 2 else halves[0].chunk(2)))
    return {**found, "gate_up": torch.stack([gate, up], dim=1).flatten(0, 2)}  # half of a panel each


def room(outputs: int) -> int:
    """Outputs that their panels have room for: the last one may not be full."""
    return -(-outputs // LANES) * LANES


def vectors(layer: Any) -> dict[str, Float[Tensor, "*size"]]:
    """The norms, the biases and other small numbers of a layer by the names of the C side, float32."""
    attention = getattr(layer, "self_attn", None)
    before = BEFORE if hasattr(layer, BEFORE["mlp_norm"]) else OPERATORS
    names = AROUND if hasattr(layer, AROUND["mlp_said_norm"]) else before
    norms = {ours: getattr(layer, theirs, None) for ours, theirs in names.items()}
    for ours, theirs in (("query_norm", "q"), ("key_norm", "k")):
        norms[ours] = getattr(attention, f"{theirs}_norm", getattr(attention, f"{theirs}_layernorm", None))
    found = {name: scales(norm) for name, norm in norms.items() if norm is not None}
    if hasattr(layer, "conv"):
        found["taps"] = layer.conv.conv.weight.detach().float().squeeze(1).T
    if hasattr(layer, "linear_attn"):
        mixer = layer.linear_attn
        found |= {
            "taps": mixer.conv1d.weight.detach().float().squeeze(1).T,
            "decay": mixer.A_log.detach().float().exp(),
            "step_bias": mixer.dt_bias.detach().float(),
            "gated_norm": mixer.norm.weight.detach().float(),
        }
    if experts.routed(layer):
        found |= experts.vectors(layer)
    biases = [linear.bias.detach() for linear in linears(layer)["qkv"] if linear.bias is not None]
    return {**found, "qkv_bias": torch.cat(biases).float()} if biases else found


def scales(norm: nn.Module) -> Float[Tensor, "size"]:
    """What a norm multiplies by, float32. Some keep what is to be added to 1."""
    return norm.get_parameter("weight").detach().float() + type(norm).__name__.startswith(AROUND_ONE)
