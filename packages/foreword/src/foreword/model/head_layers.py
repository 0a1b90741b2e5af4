"""Qwen3 decoder layers for trained heads, from transformers' own parts; the caller
computes attention.
"""

from collections.abc import Callable, Mapping
from typing import Any

from jaxtyping import Float, Int
from torch import Tensor, nn
from transformers import LlamaConfig, Qwen3Config
from transformers import PreTrainedConfig as HFConfig
from transformers.models.llama import modeling_llama
from transformers.models.llama.modeling_llama import (
    LlamaMLP,
    LlamaRMSNorm,
    apply_rotary_pos_emb,
)
from transformers.models.qwen3 import modeling_qwen3
from transformers.models.qwen3.modeling_qwen3 import Qwen3MLP, rotate_half

from foreword.errors import ModelError, words
from foreword.model.architectures import head_dim

Angles = tuple[Float[Tensor, "rows 1 dim"], Float[Tensor, "rows 1 dim"]]
"""Cosines and sines of the positions of some rows."""
Attend = Callable[
    [
        int,
        Float[Tensor, "rows heads dim"],
        Float[Tensor, "rows kv dim"],
        Float[Tensor, "rows kv dim"],
    ],
    Float[Tensor, "rows heads dim"],
]
"""(layer number, queries, keys, values) of rows -> attention output of each row."""

SIZES = (
    "vocab_size hidden_size intermediate_size num_hidden_layers num_attention_heads "
    "num_key_value_heads"
).split()
OPTIONAL = (
    "head_dim",
    "hidden_act",
    "max_position_embeddings",
    "rms_norm_eps",
    "attention_bias",
    "rope_parameters",
)
SIDES = [
    name
    for name in (*SIZES, "head_dim")
    if name not in ("vocab_size", "num_hidden_layers")
]
"""Sides of a layer's weights, or factors of one."""


def sizes(config: Mapping[str, Any], source: str) -> Qwen3Config:
    """Return the layers' config of a checkpoint. ModelError if a size is missing."""
    missing = [
        name for name in SIZES if type(config.get(name)) is not int or config[name] < 1
    ]
    if missing:
        raise ModelError(
            f"cannot load {source}: config.json lacks {', '.join(missing)} as whole "
            "numbers above 0. Add them"
        )
    options = {
        name: config[name]
        for name in (*SIZES, *OPTIONAL)
        if config.get(name) is not None
    }
    options["rope_parameters"] = rope(config, source)
    options.setdefault(
        "head_dim", options["hidden_size"] // options["num_attention_heads"]
    )
    try:
        return Qwen3Config(**options)
    except Exception as error:
        raise ModelError(
            f"cannot load {source}: config.json describes no layers: {words(error)}. "
            "Correct it, or download it again"
        ) from error


def rope(config: Mapping[str, Any], source: str) -> dict[str, Any]:
    """Return the rotary parameters of a config in the form of transformers 5.

    Sections for the axes of images are left out: tokens of text have one position.
    Raises ModelError where only a part of each head is rotated.
    """
    values = dict(config.get("rope_parameters") or {})
    if not values:  # written by transformers before version 5
        values = dict(config.get("rope_scaling") or {})
        values["rope_theta"] = config.get("rope_theta")
    kind = values.pop("rope_type", None) or values.pop("type", None) or "default"
    values.pop("type", None)
    part = values.pop("partial_rotary_factor", config.get("partial_rotary_factor", 1))
    if part not in (None, 1):
        raise ModelError(
            f"cannot load {source}: partial_rotary_factor in its config.json is "
            f"{part}, and heads that rotate a part of each query are not supported. "
            "Choose another head"
        )
    return {
        **{key: value for key, value in values.items() if "mrope" not in key},
        "rope_type": "default" if kind == "mrope" else kind,
        "rope_theta": float(values.get("rope_theta") or 10_000.0),
    }


def as_config(sizes: Qwen3Config | LlamaConfig) -> dict[str, Any]:
    """Return the entries of config.json for layers, in the form of transformers before
    and after version 5.
    """
    entries = {name: getattr(sizes, name) for name in (*SIZES, *OPTIONAL)}
    rope = dict[str, Any](sizes.rope_parameters or {})
    scaling = (
        None
        if rope["rope_type"] == "default"
        else {k: v for k, v in rope.items() if k != "rope_theta"}
    )
    return entries | {
        "rope_parameters": rope,
        "rope_theta": rope["rope_theta"],
        "rope_scaling": scaling,
    }


class Norm(nn.RMSNorm):
    """RMSNorm in the dtype of its weight: under autocast the dtypes differ, and torch
    warns and is slow.
    """

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x.to(self.weight.dtype))


def norm(size: int, config: Qwen3Config) -> nn.Module:
    """Return an RMSNorm over the last dimension."""
    return Norm(size, eps=config.rms_norm_eps)


class Rotary(nn.Module):
    """Cosines and sines of positions; holds no tensors that are saved."""

    def __init__(self, config: Qwen3Config) -> None:
        super().__init__()
        self.angles = Qwen3RotaryEmbedding(config)

    def forward(
        self, x: Float[Tensor, "rows hidden"], positions: Int[Tensor, "rows"]
    ) -> Angles:
        cos, sin = self.angles(x, positions[None])
        return cos[0, :, None], sin[0, :, None]


class Attention(nn.Module):
    """Attention projections with per-head norms and rotary embeddings; the caller
    computes attention itself.
    """

    def __init__(self, config: Qwen3Config) -> None:
        super().__init__()
        self._heads = config.num_attention_heads
        dim = head_dim(config)
        wide = config.hidden_size
        self._kv = config.num_key_value_heads or self._heads
        bias = config.attention_bias
        self.q_proj = nn.Linear(wide, self._heads * dim, bias=bias)
        self.k_proj = nn.Linear(wide, self._kv * dim, bias=bias)
        self.v_proj = nn.Linear(wide, self._kv * dim, bias=bias)
        self.o_proj = nn.Linear(self._heads * dim, wide, bias=bias)
        self.q_norm, self.k_norm = norm(dim, config), norm(dim, config)

    def remembered(
        self, x: Float[Tensor, "rows hidden"], angles: Angles
    ) -> tuple[Float[Tensor, "rows kv dim"], Float[Tensor, "rows kv dim"]]:
        """Return the keys and values of rows."""
        key = self.k_norm(self.k_proj(x).unflatten(-1, (self._kv, -1)))
        return _rotated(key, angles), self.v_proj(x).unflatten(-1, (self._kv, -1))

    def forward(
        self,
        number: int,
        x: Float[Tensor, "rows hidden"],
        angles: Angles,
        attend: Attend,
    ) -> Float[Tensor, "rows hidden"]:
        query = self.q_norm(self.q_proj(x).unflatten(-1, (self._heads, -1)))
        key, value = self.remembered(x, angles)
        return self.o_proj(
            attend(number, _rotated(query, angles), key, value).flatten(-2)
        )


class Layer(nn.Module):
    """Attention and a gated MLP, each after a norm and beside a residual."""

    def __init__(self, config: Qwen3Config) -> None:
        super().__init__()
        self.input_layernorm = norm(config.hidden_size, config)
        self.self_attn = Attention(config)
        self.post_attention_layernorm = norm(config.hidden_size, config)
        self.mlp = Qwen3MLP(config)

    def forward(
        self,
        number: int,
        x: Float[Tensor, "rows hidden"],
        angles: Angles,
        attend: Attend,
    ) -> Float[Tensor, "rows hidden"]:
        x = x + self.self_attn(number, self.input_layernorm(x), angles, attend)
        return x + self.mlp(self.post_attention_layernorm(x))


def _rotated(
    x: Float[Tensor, "rows heads dim"], angles: Angles
) -> Float[Tensor, "rows heads dim"]:
    cos, sin = angles
    return x * cos.to(x.dtype) + rotate_half(x) * sin.to(x.dtype)


__all__ = [
    "HFConfig",
    "LlamaConfig",
    "LlamaMLP",
    "LlamaRMSNorm",
    "LlamaRotaryEmbedding",
    "Qwen3RotaryEmbedding",
    "apply_rotary_pos_emb",
]


class _Exact(nn.Module):
    """A module that stays in float32 when its parent is cast: in bfloat16, angles are
    off by a radian at 400.
    """

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> "_Exact":
        return super()._apply(lambda tensor: tensor.to(fn(tensor).device), recurse)


class LlamaRotaryEmbedding(_Exact, modeling_llama.LlamaRotaryEmbedding):
    """Llama's rotary angles, in float32."""


class Qwen3RotaryEmbedding(_Exact, modeling_qwen3.Qwen3RotaryEmbedding):
    """Qwen3's rotary angles, in float32."""
