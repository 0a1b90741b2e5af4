"""Parts of each architecture under their names in the C forward (csrc/forward.c), and
their layout.

Maps Hugging Face's attribute names; model/executors/native/layout.py packs the weights.
"""

from collections.abc import Mapping
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn
from transformers import (
    MODEL_FOR_CAUSAL_LM_MAPPING,
    MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING,
    MODEL_FOR_SPEECH_SEQ_2_SEQ_MAPPING,
    AutoModelForCausalLM,
    AutoModelForImageTextToText,
    AutoModelForSeq2SeqLM,
    AutoModelForSpeechSeq2Seq,
    PreTrainedConfig,
    PreTrainedModel,
)
from transformers.pytorch_utils import Conv1D

ATTENTION = ("self_attn", "attention", "attn")
STATES = ("linear_attn", "conv")
"""Attribute names of a layer's token mixer: attention, or a recurrent one."""
BLOCKS = ("mlp", "feed_forward", "block_sparse_moe", "shared_mlp")
"""Attribute names of a layer's MLP; some layers hold the parts of the MLP directly."""
QKV = (
    "qkv_proj",
    "q_proj k_proj v_proj",
    "query_key_value",
    "c_attn",
    "in_proj",
    "in_proj_qkv in_proj_z in_proj_b in_proj_a",
)
OUT = ("o_proj", "out_proj", "dense", "c_proj")
GATED = ("gate_up_proj", "gate_proj up_proj", "w1 w3", "input_linear")
PLAIN = ("up_proj", "fc1", "c_fc", "dense_h_to_4h")
"""Attribute names of an MLP's input projections, with a gate and without."""
DOWN = ("down_proj", "w2", "fc2", "c_proj", "dense_4h_to_h", "output_linear")
HEAD_NORMS = {
    "query_norm": ("q_norm", "q_layernorm", "query_layernorm"),
    "key_norm": ("k_norm", "k_layernorm", "key_layernorm"),
}
NORMS: tuple[Mapping[str, str], ...] = (
    {
        "norm": "input_layernorm",
        "said_norm": "post_attention_layernorm",
        "mlp_norm": "pre_feedforward_layernorm",
        "mlp_said_norm": "post_feedforward_layernorm",
    },
    {
        "norm": "input_layernorm",
        "said_norm": "post_self_attn_layernorm",
        "mlp_norm": "post_attention_layernorm",
        "mlp_said_norm": "post_mlp_layernorm",
    },
    {"norm": "input_layernorm", "mlp_norm": "post_attention_layernorm"},
    {"norm": "operator_norm", "mlp_norm": "ffn_norm"},
    {
        "norm": "self_attn_layer_norm",
        "cross_norm": "encoder_attn_layer_norm",
        "mlp_norm": "final_layer_norm",
    },
    {"norm": "ln_1", "mlp_norm": "ln_2"},
    {"norm": "input_layernorm", "mlp_norm": "input_layernorm"},
)
"""Norm names of a layer: first with norms of both inputs and outputs of its halves,
then of inputs only, separate or shared. The first entry whose last name a layer has
applies."""
LAST = (
    "norm",
    "embedding_norm",
    "final_layer_norm",
    "final_layernorm",
    "ln_f",
    "layer_norm",
)
PLACES = ("embed_positions", "wpe")
AROUND_ONE = ("Gemma", "Qwen3_5RMSNorm", "Qwen3_5MoeRMSNorm", "NemotronLayerNorm1P")
"""Prefixes of the class names of norms whose scale is 1 + weight."""
UNCENTRED = ("T5LayerNorm", "MT5LayerNorm", "UMT5LayerNorm")
"""Class names of norms that are RMSNorm all the same."""
INTERLEAVED = ("Cohere", "Cohere2", "Ernie4_5", "Glm", "Glm4", "Helium")
"""Architectures that rotate adjacent pairs of dimensions, not half a head apart."""

WINDOWED = (
    "Mistral",
    "Ministral3",
    "Mixtral",
    "Olmoe",
    "Phi3",
    "Qwen2Moe",
    "Starcoder2",
)
"""Architectures whose config gives one window for all layers; elsewhere the layer gives
it, or there is none.
"""

INNER = ("intermediate_size", "ffn_dim", "decoder_ffn_dim", "d_ff", "n_inner")
"""Config names of the inner size of an MLP."""


def head_dim(config: Any) -> int:
    """Return the dimension of one attention head."""
    return (
        getattr(config, "head_dim", None)
        or config.hidden_size // config.num_attention_heads
    )


def query_heads(config: Any) -> int:
    """Return the number of query heads; for an encoder-decoder, of its decoder."""
    return (
        getattr(config, "decoder_attention_heads", None) or config.num_attention_heads
    )


def kv_heads(config: Any) -> int:
    """Return the number of key and value heads; by default, as many as queries have."""
    return getattr(config, "num_key_value_heads", None) or config.num_attention_heads


def inner_size(config: Any) -> int:
    """Return the inner size of an MLP; by default, four times the hidden size."""
    return next(
        filter(None, (getattr(config, name, None) for name in INNER)),
        4 * config.hidden_size,
    )


def is_seq2seq(config: PreTrainedConfig) -> bool:
    """Return whether a config is of an encoder-decoder."""
    return bool(getattr(config, "is_encoder_decoder", False))


def has_vision(config: PreTrainedConfig) -> bool:
    """Return whether a config is that of a model with a vision tower."""
    return (
        type(config) in MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING
        and getattr(config, "image_token_id", None) is not None
    )


def loader(config: PreTrainedConfig) -> Any:
    """Return the Auto class of transformers that loads a checkpoint of this kind."""
    if is_seq2seq(config):
        if type(config) in MODEL_FOR_SPEECH_SEQ_2_SEQ_MAPPING:
            return AutoModelForSpeechSeq2Seq
        return AutoModelForSeq2SeqLM
    vision = (
        type(config) in MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING
        and type(config) not in MODEL_FOR_CAUSAL_LM_MAPPING
    )
    return AutoModelForImageTextToText if vision else AutoModelForCausalLM


def body(model: PreTrainedModel) -> Any:
    """Return the decoder, embeddings and final norm included, without the LM head and
    without vision parts.
    """
    return model.get_decoder()


def lm_head(model: PreTrainedModel) -> Any:
    """Return the LM head, a linear layer."""
    return model.get_output_embeddings()


def last_norm(model: PreTrainedModel) -> Any:
    """Return the final norm, before the LM head."""
    return _one(body(model), *LAST)


def places(model: PreTrainedModel) -> Float[Tensor, "places hidden"] | None:
    """Return the learned position embeddings; None if positions are not learned."""
    inner = body(model)
    for name in PLACES:
        if has(inner, name):
            learned = getattr(inner, name)
            return learned.weight.detach()[getattr(learned, "offset", 0) :]
    return None


def is_recurrent(layer: Any) -> bool:
    """Return whether a layer has a recurrent state instead of attention."""
    return not any(has(layer, name) for name in ATTENTION)


def attention(layer: Any) -> Any:
    """Return the attention module of a layer."""
    return _one(layer, *ATTENTION)


def block(layer: Any) -> Any:
    """Return the MLP of a layer, or the layer itself where it holds the parts."""
    return next((getattr(layer, name) for name in BLOCKS if has(layer, name)), layer)


def routed(layer: Any) -> bool:
    """Return whether the MLP is a mixture of experts."""
    return hasattr(block(layer), "experts")


def plain(layer: Any) -> bool:
    """Return whether the MLP has no gate."""
    return not routed(layer) and not any(
        hasattr(block(layer), names.split()[0]) for names in GATED
    )


def parallel(layer: Any) -> bool:
    """Return whether attention and MLP read the same input (a parallel residual)."""
    by_name = norms(layer)
    shared = "norm" in by_name and by_name["norm"] is by_name.get("mlp_norm")
    return getattr(layer, "use_parallel_residual", shared)


def linears(layer: Any) -> dict[str, tuple[Any, ...]]:
    """Return, by matrix of the C side, the linear layers whose outputs are concatenated
    in it. Experts are excluded.
    """
    mixer, mlp = _one(layer, *ATTENTION, *STATES), block(layer)
    mixing = {"qkv": _first(mixer, *QKV), "out": _first(mixer, *OUT)}
    if has(layer, "encoder_attn"):
        mixing |= {
            "cross_q": (layer.encoder_attn.q_proj,),
            "cross_out": _first(layer.encoder_attn, *OUT),
        }
    if routed(layer):
        return mixing
    inner = _first(mlp, *GATED, *PLAIN)
    return {**mixing, "gate_up": inner, "down": _first(mlp, *DOWN)}


def norms(layer: Any) -> dict[str, Any]:
    """Return the norms over rows that the layer has, by name on the C side."""
    names = next(names for names in NORMS if has(layer, [*names.values()][-1]))
    return {
        ours: getattr(layer, theirs)
        for ours, theirs in names.items()
        if has(layer, theirs)
    }


def head_norms(layer: Any) -> dict[str, Any]:
    """Return the layer's norms over queries and keys, by name on the C side."""
    mixer = None if is_recurrent(layer) else attention(layer)
    modules: dict[str, nn.Module] = {}
    for ours, names in HEAD_NORMS.items():
        for name in names:
            if has(mixer, name):
                modules[ours] = getattr(mixer, name)
    return modules


def centred(norm: nn.Module) -> bool:
    """Return whether a norm subtracts the mean (LayerNorm, not RMSNorm)."""
    name = type(norm).__name__
    return "LayerNorm" in name and name not in UNCENTRED


def scales(norm: Any) -> Float[Tensor, "*size"]:
    """Return a norm's scale, float32; some store it minus 1, some have none."""
    if getattr(norm, "weight", None) is None:
        return torch.ones(norm.normalized_shape, dtype=torch.float32)
    return norm.weight.detach().float() + type(norm).__name__.startswith(AROUND_ONE)


def window(layer: Any) -> int:
    """Return the sliding window of a layer in tokens, the current one too; 0 = none."""
    mixer = attention(layer)
    if not getattr(mixer, "is_sliding", True):
        return 0
    default = None
    if _architecture(mixer) in WINDOWED:
        default = getattr(mixer.config, "sliding_window", None)
    return getattr(mixer, "sliding_window", default) or 0


def turns(layer: Any) -> bool:
    """Return whether the layer applies rotary embeddings to queries and keys."""
    if is_recurrent(layer):
        return False
    mixer = attention(layer)
    # layers without a window have no position encoding
    if _architecture(mixer) in ("Cohere2", "Exaone4"):
        return bool(window(layer)) or mixer.config.sliding_window is None
    return bool(getattr(mixer, "use_rope", True))


def order(layer: Any) -> Int[Tensor, "outputs"] | None:
    """Return which output of `qkv` the C side holds at each index; None = the same
    order.

    The C side has queries, then keys, then values, and rotates pairs of dimensions half
    a head apart. Scores do not depend on the order of a head's dimensions, as long as
    queries and keys share it.
    """
    kind = "" if is_recurrent(layer) else _architecture(attention(layer))
    if kind not in (*INTERLEAVED, "GPTNeoX"):
        return None
    config, parts = attention(layer).config, linears(layer)
    dim = shape(parts["out"][0])[1] // config.num_attention_heads
    outputs = torch.arange(sum(shape(part)[0] for part in parts["qkv"])).view(-1, dim)
    if kind == "GPTNeoX":
        return outputs.view(-1, 3, dim).transpose(0, 1).flatten()
    rotated = int(dim * (config.rope_parameters or {}).get("partial_rotary_factor", 1))
    dims = torch.arange(dim)
    dims[:rotated] = dims[:rotated].view(-1, 2).T.flatten()
    heads = config.num_attention_heads + config.num_key_value_heads
    outputs[:heads] = outputs[:heads, dims]
    return outputs.flatten()


def ordinary(linear: Any) -> bool:
    """Return whether a linear layer only multiplies by its weight: not adapted,
    quantized, hooked or patched.
    """
    hooked = (
        linear._forward_hooks or linear._forward_pre_hooks or "forward" in vars(linear)
    )
    return type(linear) in (nn.Linear, Conv1D) and not hooked


def shape(linear: Any) -> tuple[int, int]:
    """Return (outputs, depth) of a linear layer, also after its weight was dropped."""
    if isinstance(linear, nn.Linear):
        return linear.out_features, linear.in_features
    return linear.nf, linear.nx


def matrix(linear: Any) -> Float[Tensor, "outputs depth"]:
    """Return the weight of a linear layer; Conv1D stores it transposed."""
    return linear.weight if isinstance(linear, nn.Linear) else linear.weight.T


def drop_weights(model: nn.Module) -> None:
    """Free the weights of all linear layers, once a backend holds them otherwise."""
    for module in model.modules():
        if isinstance(module, nn.Linear | Conv1D):
            nothing = module.weight.new_empty(0)
            module.weight = nn.Parameter(nothing, requires_grad=False)


def fill(linear: Any, weight: Float[Tensor, "outputs depth"]) -> None:
    """Set the weight of a linear layer."""
    numbers = weight if isinstance(linear, nn.Linear) else weight.T
    linear.weight = nn.Parameter(numbers.contiguous().clone(), requires_grad=False)


def has(owner: Any, name: str) -> bool:
    """Return whether the owner has this part; None counts as absent."""
    return getattr(owner, name, None) is not None


def _architecture(attention: nn.Module) -> str:
    """Return an attention module's architecture, from its class name."""
    return type(attention).__name__.removesuffix("Attention")


def _one(owner: Any, *names: str) -> Any:
    """Return the first of these parts that the owner has."""
    return getattr(owner, next(name for name in names if has(owner, name)))


def _first(owner: Any, *names: str) -> tuple[Any, ...]:
    """Return the first of these groups of linear layers that the owner has."""
    group = next(parts for parts in map(str.split, names) if hasattr(owner, parts[0]))
    return tuple(getattr(owner, part) for part in group)
