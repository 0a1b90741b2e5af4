"""What models of many kinds call their parts, by the names of the C side (native/llama.c), and how they lay them out.

Knows Hugging Face's names; knows nothing about how the C side holds what they name.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn
from transformers import (
    MODEL_FOR_CAUSAL_LM_MAPPING,
    MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING,
    AutoModelForCausalLM,
    AutoModelForImageTextToText,
    PreTrainedConfig,
    PreTrainedModel,
)
from transformers.pytorch_utils import Conv1D

ATTENTION = ("self_attn", "attention", "attn")
STATES = ("linear_attn", "conv")
"""What a layer calls the half that looks at other tokens: at all of them, or at a state that remembers them."""
BLOCKS = ("mlp", "feed_forward", "block_sparse_moe", "shared_mlp")
"""What it calls the half that looks at one token alone; some have the parts of it among their own."""
QKV = (
    "qkv_proj", "q_proj k_proj v_proj", "query_key_value", "c_attn", "in_proj",
    "in_proj_qkv in_proj_z in_proj_b in_proj_a",
)  # fmt: skip
OUT = ("o_proj", "out_proj", "dense", "c_proj")
GATED = ("gate_up_proj", "gate_proj up_proj", "w1 w3", "input_linear")
PLAIN = ("up_proj", "fc1", "c_fc", "dense_h_to_4h")
"""What an MLP reads with, where gates let through what it says and where there are none."""
DOWN = ("down_proj", "w2", "fc2", "c_proj", "dense_4h_to_h", "output_linear")
HEAD_NORMS = {
    "query_norm": ("q_norm", "q_layernorm", "query_layernorm"), "key_norm": ("k_norm", "k_layernorm", "key_layernorm"),
}  # fmt: skip
NORMS: tuple[Mapping[str, str], ...] = (
    {
        "norm": "input_layernorm", "said_norm": "post_attention_layernorm",
        "mlp_norm": "pre_feedforward_layernorm", "mlp_said_norm": "post_feedforward_layernorm",
    },
    {
        "norm": "input_layernorm", "said_norm": "post_self_attn_layernorm",
        "mlp_norm": "post_attention_layernorm", "mlp_said_norm": "post_mlp_layernorm",
    },
    {"norm": "input_layernorm", "mlp_norm": "post_attention_layernorm"},
    {"norm": "operator_norm", "mlp_norm": "ffn_norm"},
    {"norm": "self_attn_layer_norm", "mlp_norm": "final_layer_norm"},
    {"norm": "ln_1", "mlp_norm": "ln_2"},
    {"norm": "input_layernorm", "mlp_norm": "input_layernorm"},
)  # fmt: skip
"""Of a layer that norms what its halves say, and perhaps what they read; of one that only norms what they read, each
apart or both at once. A layer is as the first of these whose last name it has."""
LAST = ("norm", "embedding_norm", "final_layer_norm", "final_layernorm", "ln_f")
PLACES = ("embed_positions", "wpe")
AROUND_ONE = ("Gemma", "Qwen3_5RMSNorm", "Qwen3_5MoeRMSNorm", "NemotronLayerNorm1P")
"""How the names of norms begin that keep what is to be added to 1."""
INTERLEAVED = ("Cohere", "Cohere2", "Ernie4_5", "Glm", "Glm4", "Helium")
"""Kinds whose heads are turned by pairs of numbers that lie side by side, not half a head apart."""

WINDOWED = ("Mistral", "Ministral3", "Mixtral", "Olmoe", "Phi3", "Qwen2Moe", "Starcoder2")
"""Kinds all of whose layers have the window that the config names; of others their layers say it, or there is none."""

INNER = ("intermediate_size", "ffn_dim", "n_inner")
"""What configs call the numbers within an MLP."""


def head_dim(config: Any) -> int:
    """Numbers in the key of one attention head."""
    return getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads


def kv_heads(config: Any) -> int:
    """Heads of keys and values: as many as of queries where a config says nothing of them."""
    return getattr(config, "num_key_value_heads", None) or config.num_attention_heads


def inner_size(config: Any) -> int:
    """Numbers within an MLP: four times those of a row where a config says nothing of them."""
    return next(filter(None, (getattr(config, name, None) for name in INNER)), 4 * config.hidden_size)


def loader(config: PreTrainedConfig) -> Any:
    """What loads a checkpoint. Those that see as well are no causal models to transformers, but their text is read."""
    sees = type(config) in MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING and type(config) not in MODEL_FOR_CAUSAL_LM_MAPPING
    return AutoModelForImageTextToText if sees else AutoModelForCausalLM


def body(model: PreTrainedModel) -> Any:
    """What reads the text, embeddings and last norm included: a model without its head, and without what sees."""
    return model.get_decoder()


def mouth(model: PreTrainedModel) -> Any:
    """The output matrix, a linear layer."""
    return model.get_output_embeddings()


def last_norm(model: PreTrainedModel) -> Any:
    """The norm before its output matrix."""
    return _one(body(model), *LAST)


def places(model: PreTrainedModel) -> Float[Tensor, "places hidden"] | None:
    """What is added to the embedding of a token at each place; None where places do something else."""
    learnt = next((getattr(body(model), name) for name in PLACES if has(body(model), name)), None)
    return None if learnt is None else learnt.weight.detach()[getattr(learnt, "offset", 0) :]


def remembers(layer: Any) -> bool:
    """It has no attention, but remembers in a state (native/recurrent.c)."""
    return not any(has(layer, name) for name in ATTENTION)


def attention(layer: Any) -> Any:
    """The half of a layer that looks at other tokens, where it is attention."""
    return _one(layer, *ATTENTION)


def block(layer: Any) -> Any:
    """The half of a layer that looks at one token alone, or the layer itself where the parts of it are its own."""
    return next((getattr(layer, name) for name in BLOCKS if has(layer, name)), layer)


def routed(layer: Any) -> bool:
    """That half is experts."""
    return hasattr(block(layer), "experts")


def plain(layer: Any) -> bool:
    """That half is an MLP without gates."""
    return not routed(layer) and not any(hasattr(block(layer), names.split()[0]) for names in GATED)


def parallel(layer: Any) -> bool:
    """Both halves read the same rows, before what either says is added."""
    found = norms(layer)
    alone = "norm" in found and found["norm"] is found.get("mlp_norm")
    return getattr(layer, "use_parallel_residual", alone)


def linears(layer: Any) -> dict[str, tuple[Any, ...]]:
    """The modules whose outputs lie one after the other in each matrix of the C side; some models join them as well.

    Those of experts are not among them.
    """
    mixer, mlp = _one(layer, *ATTENTION, *STATES), block(layer)
    found = {"qkv": _first(mixer, *QKV), "out": _first(mixer, *OUT)}
    return found if routed(layer) else {**found, "gate_up": _first(mlp, *GATED, *PLAIN), "down": _first(mlp, *DOWN)}


def norms(layer: Any) -> dict[str, Any]:
    """Those of rows, as far as the layer has them."""
    names = next(names for names in NORMS if has(layer, [*names.values()][-1]))
    return {ours: getattr(layer, theirs) for ours, theirs in names.items() if has(layer, theirs)}


def head_norms(layer: Any) -> dict[str, Any]:
    """Those of queries and keys, as far as the layer has them."""
    looks = None if remembers(layer) else attention(layer)
    found = [(ours, name) for ours, names in HEAD_NORMS.items() for name in names if has(looks, name)]
    return {ours: getattr(looks, name) for ours, name in found}


def centred(norm: nn.Module) -> bool:
    """It takes the mean away first."""
    return "LayerNorm" in type(norm).__name__


def scales(norm: Any) -> Float[Tensor, "*size"]:
    """What a norm multiplies by, float32. Some keep what is to be added to 1, some nothing."""
    if getattr(norm, "weight", None) is None:
        return torch.ones(norm.normalized_shape)
    return norm.weight.detach().float() + type(norm).__name__.startswith(AROUND_ONE)


def window(layer: Any) -> int:
    """Tokens that attention looks back at, itself included; 0 = all."""
    looks = attention(layer)
    if not getattr(looks, "is_sliding", True):
        return 0
    whole = getattr(looks.config, "sliding_window", None) if _kind(looks) in WINDOWED else None
    return getattr(looks, "sliding_window", whole) or 0


def turns(layer: Any) -> bool:
    """Places turn its queries and keys."""
    if remembers(layer):
        return False
    looks = attention(layer)
    if _kind(looks) in ("Cohere2", "Exaone4"):  # far away places do not matter
        return bool(window(layer)) or looks.config.sliding_window is None
    return bool(getattr(looks, "use_rope", True))


def order(layer: Any) -> Int[Tensor, "outputs"] | None:
    """Which output of `qkv` the C side has at each place; None = as they come.

    There queries come first, then keys, then values, and a pair of numbers that turn together lies half a head apart.
    Scores are the same in any order of a head's numbers, if keys have them in the same one as queries.
    """
    kind = "" if remembers(layer) else _kind(attention(layer))
    if kind not in (*INTERLEAVED, "GPTNeoX"):
        return None
    config, parts = attention(layer).config, linears(layer)
    dim = shape(parts["out"][0])[1] // config.num_attention_heads
    outputs = torch.arange(sum(shape(part)[0] for part in parts["qkv"])).view(-1, dim)
    if kind == "GPTNeoX":
        return outputs.view(-1, 3, dim).transpose(0, 1).flatten()
    turned = int(dim * (config.rope_parameters or {}).get("partial_rotary_factor", 1))
    numbers = torch.arange(dim)
    numbers[:turned] = numbers[:turned].view(-1, 2).T.flatten()
    heads = config.num_attention_heads + config.num_key_value_heads
    outputs[:heads] = outputs[:heads, numbers]
    return outputs.flatten()


def ordinary(linear: Any) -> bool:
    """It multiplies by its weight and does nothing else: nobody adapted it, quantized it, or hooked into it."""
    hooked = linear._forward_hooks or linear._forward_pre_hooks or "forward" in vars(linear)
    return type(linear) in (nn.Linear, Conv1D) and not hooked


def shape(linear: Any) -> tuple[int, int]:
    """(outputs, depth) of a linear layer, whether it has its weight still or not."""
    return (linear.out_features, linear.in_features) if isinstance(linear, nn.Linear) else (linear.nf, linear.nx)


def matrix(linear: Any) -> Float[Tensor, "outputs depth"]:
    """The weight of a linear layer; some hold it the other way round."""
    return linear.weight if isinstance(linear, nn.Linear) else linear.weight.T


def drop_weights(model: nn.Module) -> None:
    """Forget the weights of all linear layers, once they are held in another form."""
    for module in model.modules():
        if isinstance(module, nn.Linear | Conv1D):
            module.weight = nn.Parameter(module.weight.new_empty(0), requires_grad=False)


def fill(linear: Any, weight: Float[Tensor, "outputs depth"]) -> None:
    """Give a linear layer its weight back."""
    held = weight if isinstance(linear, nn.Linear) else weight.T
    linear.weight = nn.Parameter(held.contiguous().clone(), requires_grad=False)


def has(owner: Any, name: str) -> bool:
    """It has such a part: some hold the place of one that others of their kind have."""
    return getattr(owner, name, None) is not None


def _kind(looks: nn.Module) -> str:
    """The kind of model that attention is of."""
    return type(looks).__name__.removesuffix("Attention")


def _one(owner: Any, *names: str) -> Any:
    """The first of these parts that the owner has."""
    return getattr(owner, next(name for name in names if has(owner, name)))


def _first(owner: Any, *names: str) -> tuple[Any, ...]:
    """The same of linear layers, of which several in place of one are named in one string."""
    found = next(parts for parts in map(str.split, names) if hasattr(owner, parts[0]))
    return tuple(getattr(owner, part) for part in found)
