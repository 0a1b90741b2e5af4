"""Parts of transformers' models that trained heads are made of, so that they need not touch transformers for that."""

from __future__ import annotations

from collections.abc import Callable

from torch import Tensor, nn
from transformers import LlamaConfig
from transformers import PreTrainedConfig as HFConfig
from transformers.models.llama import modeling_llama
from transformers.models.llama.modeling_llama import LlamaMLP, LlamaRMSNorm, apply_rotary_pos_emb
from transformers.models.qwen3 import modeling_qwen3

__all__ = [
    "HFConfig", "LlamaConfig", "LlamaMLP", "LlamaRMSNorm", "LlamaRotaryEmbedding", "Qwen3RotaryEmbedding",
    "apply_rotary_pos_emb",
]  # fmt: skip


class _Exact(nn.Module):
    """Stays in float32 when what it is part of is cast: rounded to bfloat16, angles are off by a radian at 400."""

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> _Exact:
        return super()._apply(lambda tensor: tensor.to(fn(tensor).device), recurse)


class LlamaRotaryEmbedding(_Exact, modeling_llama.LlamaRotaryEmbedding):
    """The angles of positions."""


class Qwen3RotaryEmbedding(_Exact, modeling_qwen3.Qwen3RotaryEmbedding):
    """The same for layers of that kind."""
