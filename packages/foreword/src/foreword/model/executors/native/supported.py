"""Which models the C code computes: architectures, sizes, activations and rotary
embeddings.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import chain
from typing import Any

import torch
from transformers import PreTrainedModel

from foreword.model import architectures
from foreword.model.architectures import body, is_recurrent, linears, plain, shape
from foreword.model.executors.native.layout import LANES
from foreword.model.executors.native.rows import first_attention, head_size
from foreword.model.layers import layers_of
from foreword.native import forward
from foreword.native.cpu import fast_bfloat16

KINDS = (
    "Llama Mistral Qwen2 Qwen3 Gemma Gemma2 Gemma3 Phi3 Olmo2 Olmo3 SmolLM3 Granite "
    "Qwen3_5 Lfm2 Mixtral Qwen2Moe Qwen3Moe Qwen3_5Moe Olmoe GraniteMoe Lfm2Moe Arcee "
    "Cohere Cohere2 Ernie4_5 Exaone4 Glm Glm4 Helium Jais2 Ministral Nemotron Olmo "
    "SeedOss StableLm Starcoder2 GPT2 GPTNeoX OPT Phi HunYuanDenseV1 GraniteMoeHybrid "
    "Ministral3 GptOss Qwen2VL Qwen2_5_VL Qwen3VL Qwen3VLMoe"
).split()
VISION = (
    "Gemma3 Mistral3 Llava SmolVLM Idefics3 InternVL Lfm2Vl Qwen2VL Qwen2_5_VL Qwen3VL "
    "Qwen3VLMoe Qwen3_5 Qwen3_5Moe"
).split()
"""Vision-language wrappers whose language model is supported."""
SEQ2SEQ = ("T5", "MT5", "UMT5", "Whisper")
"""Encoder-decoders whose decoder is supported."""
SUPPORTED = (
    *(f"{kind}ForCausalLM" for kind in KINDS),
    *(f"{kind}ForConditionalGeneration" for kind in (*VISION, *SEQ2SEQ)),
    "GPT2LMHeadModel",
)
CAPPED = "Gemma2Model"
"""The only kind whose `attn_logit_softcapping` is applied; other kinds have the setting
and ignore it.
"""
UNSUPPORTED = (
    "clip_qkv",
    "scale_attn_by_inverse_layer_idx",
    "reorder_and_upcast_attn",
    "add_cross_attention",
)
"""Config settings that the C code does not implement; a model that turns one on is
refused.
"""
CLAMPED = {"swiglu_alpha": 1.702, "swiglu_limit": 7.0}
"""Settings of the activation of gpt-oss, the only ones that the C code has."""
ROPES = ("default", "linear", "llama3", "yarn")
"""Rotary types whose angles depend on the position alone; so do those with a fixed
`alpha`.
"""
ACTIVATIONS = {
    "silu": forward.SILU,
    "gelu_pytorch_tanh": forward.GELU,
    "gelu_new": forward.GELU,
}
"""Activations of gated MLPs."""
PLAIN_ACTIVATIONS = {
    **ACTIVATIONS,
    "gelu_fast": forward.GELU,
    "gelu": forward.GELU_ERF,
    "relu": forward.RELU,
    "relu2": forward.RELU_SQUARED,
}
"""Activations of MLPs without gates."""
MOST_DIM = 256
"""Most numbers of a head."""


def usual(architectures: Sequence[str] | None) -> list[torch.dtype]:
    """Return the dtypes to load such a checkpoint in on a CPU: the first, or the last
    if this backend then refuses it.

    Without bfloat16 hardware, bfloat16 still halves the bytes to read, but torch
    computes slowly in it.
    """
    if fast_bfloat16():
        return [torch.bfloat16]
    supported = forward.reason() is None and any(
        kind in SUPPORTED for kind in architectures or ()
    )
    return [torch.bfloat16, torch.float32] if supported else [torch.float32]


def refused(model: PreTrainedModel) -> str | None:
    """Return why this backend cannot run the model; None if it can."""
    reason = _unsupported(model) or _unfit_layers(model)
    if reason is not None:
        return reason
    # Last: then a model that no dtype helps is refused in each with the same words.
    if (model.device.type, model.dtype) != ("cpu", torch.bfloat16):
        return "it is made for bfloat16 on CPU"
    return None


def _unsupported(model: PreTrainedModel) -> str | None:
    """Return which part of the model's structure the C code does not have."""
    inner = body(model)
    kind = type(inner).__name__.removesuffix("Model")
    kind = kind.removesuffix("Text").removesuffix("Decoder")
    if kind not in KINDS:
        return f"{kind} is not a supported architecture"
    layers = layers_of(model)
    config = model.config.get_text_config()
    if all(map(is_recurrent, layers)):
        return "none of its layers has attention"
    for name in UNSUPPORTED:
        if getattr(config, name, None):
            return f"its config sets {name}, which is not supported"
    if any(map(_has_other_parts, layers)):
        return (
            "some of its layers have another kind of recurrent state, or an MLP beside "
            "their experts"
        )
    has_norm = any(architectures.has(inner, name) for name in architectures.LAST)
    if architectures.has(inner, "project_in") or not has_norm:
        return "its embeddings differ in size from its layers, or it has no final norm"
    return None


def _has_other_parts(layer: Any) -> bool:
    hybrid = architectures.has(layer, "shared_mlp") and architectures.routed(layer)
    return architectures.has(layer, "mamba") or hybrid


def _unfit_layers(model: PreTrainedModel) -> str | None:
    """Return why the C code does not compute the layers of a supported architecture."""
    layers = layers_of(model)
    config = model.config.get_text_config()
    head = architectures.lm_head(model)
    groups = [group for layer in layers for group in linears(layer).values()]
    parts = chain.from_iterable(groups)
    if not all(map(architectures.ordinary, [*parts, head])):
        return "its linear layers are not plain nn.Linear layers"
    words: Any = model.get_input_embeddings()
    if len(head.weight) > len(words.weight):
        return "its LM head scores tokens without an embedding"
    by_kind = {
        (is_recurrent(layer), architectures.routed(layer)): layer for layer in layers
    }
    kinds = by_kind.values()
    norms = [
        norm for layer in kinds for norm in architectures.head_norms(layer).values()
    ]
    if any(map(architectures.centred, norms)):
        return "its query and key norms subtract the mean"
    reasons = [_unfit_experts(layer) for layer in kinds if architectures.routed(layer)]
    reasons += [
        unfit(config, layer, head) for layer in kinds if not is_recurrent(layer)
    ]
    return next(filter(None, reasons), None)


def _unfit_experts(layer: Any) -> str | None:
    from foreword.model.executors.native import experts

    return experts.unfit(layer)


def unfit(
    config: Any,
    layer: Any,
    head: Any,
) -> str | None:
    """Return why the C code does not compute such layers with this LM head; None if it
    does.
    """
    parts = linears(layer)
    dim = shape(parts["out"][0])[1] // architectures.query_heads(config)
    bare = plain(layer)
    sizes = (head.in_features, inside(layer), dim)
    gates = () if bare else parts.get("gate_up", ())
    if (
        any(size % LANES for size in sizes)
        or dim > MOST_DIM
        or activation(config, plain=bare) is None
        or any(linear.bias is not None for linear in gates)
    ):
        return "its sizes, its activation or its biases are not the usual ones"
    if any(
        rope.get("rope_type", "default") not in ROPES and not rope.get("alpha")
        for rope in ropes(config)
    ):
        return "its rotary embedding depends on the sequence length"
    return forward.reason()


def inside(layer: Any) -> int:
    """Return the intermediate size of the MLP; 0 if the layer has experts."""
    return shape(linears(layer)["down"][0])[1] if "down" in linears(layer) else 0


def activation(
    config: Any,
    *,
    plain: bool = False,
) -> int | None:
    """Return the activation of the MLPs as the C constant; None if the C code
    lacks it.
    """
    if config.model_type == "gpt_oss":
        clamp = {name: getattr(config, name, CLAMPED[name]) for name in CLAMPED}
        return forward.CLAMPED if clamp == CLAMPED else None
    names = ("hidden_activation", "hidden_act", "activation_function", "dense_act_fn")
    name = next(filter(None, (getattr(config, key, None) for key in names)), "silu")
    return (PLAIN_ACTIVATIONS if plain else ACTIVATIONS).get(name)


def settings(model: PreTrainedModel) -> dict[str, Any]:
    """Return the flags and factors of the C model that the config and the layers of a
    model determine.
    """
    config = model.config.get_text_config()
    first = first_attention(model)
    attention = architectures.attention(first)
    bare = plain(first)
    dim = head_size(model)
    head_norms = architectures.head_norms(first).values()
    divisor = getattr(config, "logits_scaling", 1)
    logit_scale = getattr(config, "logit_scale", None) or 1 / divisor
    is_capped = type(body(model)).__name__ == CAPPED
    # some queries come with a gate of the same size (csrc/forward.c)
    parts = linears(first)["qkv"]
    gated = 2 * architectures.query_heads(config) * dim
    has_gate = len(parts) == 3 and shape(parts[0])[0] == gated
    return {
        "activation": activation(config, plain=bare),
        "broad": any(norm.weight.numel() > dim for norm in head_norms),
        "score_cap": (is_capped and config.attn_logit_softcapping) or 0,
        "logit_cap": getattr(config, "final_logit_softcapping", None) or 0,
        "residual_scale": getattr(config, "residual_multiplier", 1),
        "logit_scale": 0 if logit_scale == 1 else logit_scale,
        "query_stride": 2 * dim if has_gate else 0,
        "centred": architectures.centred(architectures.last_norm(model)),
        "plain": bare,
        "parallel": architectures.parallel(first),
        "norm_after_rotary": architectures.has(attention, "query_layernorm"),
    }


def ropes(config: Any) -> Sequence[dict[str, Any]]:
    """Return the rotary parameters: one dict for all layers, or one per kind of layer;
    empty if there are none.
    """
    parameters = getattr(config, "rope_parameters", None) or {}
    kinds = [value for value in parameters.values() if isinstance(value, dict)]
    return kinds or [parameters]
