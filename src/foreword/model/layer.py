"""Decoder layers of the Qwen3 kind, from transformers' own parts, whose attention the caller does: for trained heads.

Knows weights and rotary positions; knows nothing about which row may see which.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from jaxtyping import Float, Int
from torch import Tensor, nn
from transformers import Qwen3Config
from transformers.models.qwen3.modeling_qwen3 import Qwen3MLP, rotate_half

from foreword.errors import ModelError
from foreword.model.names import head_dim
from foreword.model.parts import Qwen3RotaryEmbedding

Angles = tuple[Float[Tensor, "rows 1 dim"], Float[Tensor, "rows 1 dim"]]
"""Cosines and sines of the positions of some rows."""
Attend = Callable[
    [int, Float[Tensor, "rows heads dim"], Float[Tensor, "rows kv dim"], Float[Tensor, "rows kv dim"]],
    Float[Tensor, "rows heads dim"],
]
"""(number of the layer, queries, keys, values) of some rows -> what each row gathers from those it may see."""

SIZES = ("vocab_size hidden_size intermediate_size num_hidden_layers num_attention_heads num_key_value_heads").split()
USUAL = "head_dim hidden_act max_position_embeddings rms_norm_eps attention_bias rope_parameters".split()


def sizes(config: Mapping[str, Any], source: str) -> Qwen3Config:
    """What layers are made of, from a checkpoint's config. Raises ModelError where it leaves out what must be known."""
    missing = [name for name in SIZES if type(config.get(name)) is not int]
    if missing:
        raise ModelError(f"{source}: config.json must say {', '.join(missing)}, as whole numbers")
    if set(config.get("layer_types") or ()) > {"full_attention"} or config.get("use_sliding_window"):
        raise ModelError(f"{source}: some of its layers look through a window, which is not supported for heads")
    known = {name: config[name] for name in (*SIZES, *USUAL) if config.get(name) is not None}
    if "rope_parameters" not in known:  # as transformers wrote it before version 5
        scaling = dict(config.get("rope_scaling") or {})
        kind = scaling.pop("rope_type", scaling.pop("type", "default"))
        known["rope_parameters"] = {
            "rope_type": kind,
            "rope_theta": float(config.get("rope_theta") or 10_000.0),
            **scaling,
        }
    known.setdefault("head_dim", known["hidden_size"] // known["num_attention_heads"])
    return Qwen3Config(**known)


def as_config(sizes: Qwen3Config) -> dict[str, Any]:
    """What config.json says of layers, for older and newer readers."""
    known = {name: getattr(sizes, name) for name in (*SIZES, *USUAL)}
    rope = dict[str, Any](sizes.rope_parameters or {})
    scaling = None if rope["rope_type"] == "default" else {k: v for k, v in rope.items() if k != "rope_theta"}
    return known | {"rope_parameters": rope, "rope_theta": rope["rope_theta"], "rope_scaling": scaling}


class Norm(nn.RMSNorm):
    """In the numbers of its own weight: under autocast a product returns others, and torch warns and is slow."""

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x.to(self.weight.dtype))


def norm(size: int, config: Qwen3Config) -> nn.Module:
    """RMSNorm over the last dimension."""
    return Norm(size, eps=config.rms_norm_eps)


class Rotary(nn.Module):
    """The angles of positions; holds no tensors that are saved."""

    def __init__(self, config: Qwen3Config) -> None:
        super().__init__()
        self.angles = Qwen3RotaryEmbedding(config)

    def forward(self, x: Float[Tensor, "rows hidden"], positions: Int[Tensor, "rows"]) -> Angles:
        cos, sin = self.angles(x, positions[None])
        return cos[0, :, None], sin[0, :, None]


class Attention(nn.Module):
    """Queries, keys and values of rows, normed head by head and turned to their positions."""

    def __init__(self, config: Qwen3Config) -> None:
        super().__init__()
        self._heads, dim, wide = config.num_attention_heads, head_dim(config), config.hidden_size
        self._kv, bias = config.num_key_value_heads or self._heads, config.attention_bias
        self.q_proj = nn.Linear(wide, self._heads * dim, bias=bias)
        self.k_proj = nn.Linear(wide, self._kv * dim, bias=bias)
        self.v_proj = nn.Linear(wide, self._kv * dim, bias=bias)
        self.o_proj = nn.Linear(self._heads * dim, wide, bias=bias)
        self.q_norm, self.k_norm = norm(dim, config), norm(dim, config)

    def remembered(
        self, x: Float[Tensor, "rows hidden"], angles: Angles
    ) -> tuple[Float[Tensor, "rows kv dim"], Float[Tensor, "rows kv dim"]]:
        """Keys and values of rows."""
        key = self.k_norm(self.k_proj(x).unflatten(-1, (self._kv, -1)))
        return _turned(key, angles), self.v_proj(x).unflatten(-1, (self._kv, -1))

    def forward(
        self, number: int, x: Float[Tensor, "rows hidden"], angles: Angles, attend: Attend
    ) -> Float[Tensor, "rows hidden"]:
        query = self.q_norm(self.q_proj(x).unflatten(-1, (self._heads, -1)))
        key, value = self.remembered(x, angles)
        return self.o_proj(attend(number, _turned(query, angles), key, value).flatten(-2))


class Layer(nn.Module):
    """Attention and a gated MLP, each after a norm and beside a residual."""

    def __init__(self, config: Qwen3Config) -> None:
        super().__init__()
        self.input_layernorm = norm(config.hidden_size, config)
        self.self_attn = Attention(config)
        self.post_attention_layernorm = norm(config.hidden_size, config)
        self.mlp = Qwen3MLP(config)

    def forward(
        self, number: int, x: Float[Tensor, "rows hidden"], angles: Angles, attend: Attend
    ) -> Float[Tensor, "rows hidden"]:
        x = x + self.self_attn(number, self.input_layernorm(x), angles, attend)
        return x + self.mlp(self.post_attention_layernorm(x))


def _turned(x: Float[Tensor, "rows heads dim"], angles: Angles) -> Float[Tensor, "rows heads dim"]:
    cos, sin = angles
    return x * cos.to(x.dtype) + rotate_half(x) * sin.to(x.dtype)
