"""Norms and rotary embeddings of known code in one launch each, in place of about eight.

The definition of each is the code of transformers that it replaces: a module is
replaced only if its code is that of Llama, byte for byte. The twin keeps the class,
attributes, parameters and hooks of the module.
"""

from collections.abc import Callable
from copy import copy
from inspect import unwrap
from types import FunctionType
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn
from transformers.models.llama import modeling_llama as llama

from foreword.model.executors.cuda.launch import fused, launches, power
from foreword.model.executors.torch.packed_linear import Swap

ROTATE = "apply_rotary_pos_emb"


def rms_norm(
    x: Float[Tensor, "*rows dim"],
    weight: Float[Tensor, "dim"],
    eps: float,
    residual: Float[Tensor, "*rows dim"] | None = None,
) -> tuple[Float[Tensor, "*rows dim"], Float[Tensor, "*rows dim"]]:
    """Return LlamaRMSNorm of x + residual, and that sum."""
    x = x.contiguous()
    dim = x.shape[-1]
    out = torch.empty_like(x)
    summed = x if residual is None else torch.empty_like(x)
    added = None if residual is None else residual.contiguous()
    fused().rms_norm[(x.numel() // dim,)](
        *(x, added, weight, out, summed, eps), DIM=dim, WIDE=power(dim)
    )
    return out, summed


def rotated(
    query: Float[Tensor, "1 heads rows dim"],
    key: Float[Tensor, "1 kv_heads rows dim"],
    cos: Float[Tensor, "1 rows dim"],
    sin: Float[Tensor, "1 rows dim"],
    unsqueeze_dim: int = 1,
) -> tuple[Tensor, Tensor]:
    """Compute `apply_rotary_pos_emb` of Llama."""
    same = query.dtype == key.dtype == cos.dtype
    packed = unsqueeze_dim == 1 and len(query) == len(cos) == 1
    if not (same and packed and launches(query)):
        return llama.apply_rotary_pos_emb(query, key, cos, sin, unsqueeze_dim)
    (_, heads, rows, dim), kv_heads = query.shape, key.shape[1]
    out = [
        query.new_empty(1, rows, count, dim).transpose(1, 2)
        for count in (heads, kv_heads)
    ]
    fused().rotate[rows, heads + kv_heads](
        *(query, key, cos.contiguous(), sin.contiguous(), *out),
        *(query.stride(2), query.stride(1), key.stride(2), key.stride(1)),
        *(heads, kv_heads),
        HALF=dim // 2,
        WIDE=power(dim // 2),
    )
    return out[0], out[1]


class _Norm(nn.Module):
    """The code of LlamaRMSNorm, in one launch."""

    weight: Tensor
    variance_epsilon: float

    def forward(self, hidden_states: Tensor) -> Tensor:
        if not launches(hidden_states) or hidden_states.dtype != self.weight.dtype:
            return super().forward(hidden_states)
        return rms_norm(hidden_states, self.weight, self.variance_epsilon)[0]


class _Layer(nn.Module):
    """The code of LlamaDecoderLayer; the second norm adds the residual."""

    def forward(self, hidden_states: Tensor, *args: Any, **kwargs: Any) -> Tensor:
        norm: Any = self.post_attention_layernorm
        own = isinstance(norm, _Norm) and hidden_states.dtype == norm.weight.dtype
        if args or not own or not launches(hidden_states) or not _untouched(norm):
            return super().forward(hidden_states, *args, **kwargs)
        residual = hidden_states
        hidden_states = self.input_layernorm(hidden_states)
        hidden_states, _ = self.self_attn(hidden_states=hidden_states, **kwargs)
        hidden_states, residual = rms_norm(
            hidden_states, norm.weight, norm.variance_epsilon, residual
        )
        return residual + self.mlp(hidden_states)


def swap_in_fused(model: nn.Module) -> list[Swap]:
    """Replace the norms, attentions and layers of known code; `swap_out` undoes it."""
    swaps = []
    for parent in list(model.modules()):
        for name, child in list(parent.named_children()):
            kind = _kind(child) if _untouched(child) else None
            if kind is not None:
                setattr(parent, name, _twin(child, kind))
                swaps.append(Swap(parent, name, child))
    return swaps


def _kind(module: Any) -> type | None:
    """Return the class with the forward that replaces a module's; None = none does."""
    forward: Any = type(module).forward
    if _same(forward, llama.LlamaRMSNorm.forward):
        return _Norm
    if _same(forward, llama.LlamaDecoderLayer.forward):
        return _Layer if _kind(module.post_attention_layernorm) is _Norm else None
    known = getattr(forward, "__globals__", {})
    if (
        ROTATE in getattr(getattr(forward, "__code__", None), "co_names", ())
        and _same(known.get(ROTATE), llama.apply_rotary_pos_emb)
        and _same(known.get("rotate_half"), llama.rotate_half)
    ):
        return type("_Attention", (), {"forward": _with_rotary(forward)})
    return None


def _with_rotary(forward: FunctionType) -> Callable[..., Any]:
    """Return the same code, whose global name ROTATE is `rotated`."""
    names = forward.__globals__ | {ROTATE: rotated}
    parts = forward.__name__, forward.__defaults__, forward.__closure__
    result = FunctionType(forward.__code__, names, *parts)
    result.__kwdefaults__ = forward.__kwdefaults__
    return result


def _twin(module: nn.Module, kind: type) -> nn.Module:
    """Return a module that shares everything with this one except its forward."""
    twin = copy(module)
    own = type(module)
    twin.__class__ = type(own.__name__, (kind, own), {"__module__": own.__module__})
    return twin


def _untouched(module: nn.Module) -> bool:
    """Return whether a module has neither hooks nor a patched forward."""
    hooked = module._forward_hooks or module._forward_pre_hooks
    return not hooked and "forward" not in vars(module)


def _same(one: Any, known: FunctionType) -> bool:
    """Return whether two functions have the same code, docstrings aside."""
    return _code(one) == _code(known)


def _code(function: Any) -> tuple[Any, ...] | None:
    code = getattr(unwrap(function), "__code__", None)  # checkpointing wraps layers
    if code is None:
        return None
    numbers = [constant for constant in code.co_consts if type(constant) is not str]
    return code.co_code, code.co_names, code.co_varnames, numbers
