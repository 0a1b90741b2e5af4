"""Norms and rotary embeddings of known code in one launch each, instead of about eight.

The definition of each is the code of transformers that it replaces: a forward is
replaced only if its code is that of Llama, byte for byte.
"""

from collections.abc import Callable
from functools import partial
from inspect import unwrap
from types import FunctionType
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn
from transformers.models.llama import modeling_llama as llama

from foreword.model.executors.cuda.launch import fused_library, power

ROTATE = "apply_rotary_pos_emb"


def rms_norm(
    x: Float[Tensor, "*rows dim"],
    weight: Float[Tensor, "dim"],
    eps: float,
    residual: Float[Tensor, "*rows dim"] | None = None,
) -> tuple[Tensor, Tensor]:
    """Return LlamaRMSNorm of x + residual, and that sum."""
    x = x.contiguous()
    dim = x.shape[-1]
    out = torch.empty_like(x)
    summed = x if residual is None else torch.empty_like(x)
    added = None if residual is None else residual.contiguous()
    fused_library().rms_norm[(x.numel() // dim,)](
        x,
        added,
        weight,
        out,
        summed,
        eps,
        DIM=dim,
        WIDE=power(dim),
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
    packed = query.stride(-1) == key.stride(-1) == len(query) == len(cos) == 1
    if not (same and packed and unsqueeze_dim == 1):
        return llama.apply_rotary_pos_emb(query, key, cos, sin, unsqueeze_dim)
    _, heads, rows, dim = query.shape
    kv_heads = key.shape[1]
    out_query = query.new_empty(1, rows, heads, dim)
    out_key = key.new_empty(1, rows, kv_heads, dim)
    fused_library().rotate[rows, heads + kv_heads](
        query,
        key,
        cos.contiguous(),
        sin.contiguous(),
        out_query,
        out_key,
        query.stride(2),
        query.stride(1),
        key.stride(2),
        key.stride(1),
        heads,
        kv_heads,
        HALF=dim // 2,
        WIDE=power(dim // 2),
    )
    return out_query.transpose(1, 2), out_key.transpose(1, 2)


def fused_forwards(model: nn.Module) -> dict[nn.Module, Callable[..., Any]]:
    """Return the forwards of the norms, attentions and layers of known code."""
    forwards = {}
    for part in model.modules():
        forward = _forward_of(part) if untouched(part) else None
        if forward is not None:
            forwards[part] = forward
    return forwards


def _forward_of(module: Any) -> Callable[..., Any] | None:
    """Return what computes the forward of a module; None where its own does."""
    forward: Any = type(module).forward
    if _same(forward, llama.LlamaRMSNorm.forward):
        return partial(_norm, module)
    if _same(forward, llama.LlamaDecoderLayer.forward):
        norm = type(module.post_attention_layernorm).forward
        known = _same(norm, llama.LlamaRMSNorm.forward)
        return partial(_layer, module) if known else None
    names = getattr(forward, "__globals__", {})
    if (
        ROTATE in getattr(getattr(forward, "__code__", None), "co_names", ())
        and _same(names.get(ROTATE), llama.apply_rotary_pos_emb)
        and _same(names.get("rotate_half"), llama.rotate_half)
    ):
        return partial(_with_rotary(forward), module)
    return None


def _norm(module: Any, hidden_states: Tensor) -> Tensor:
    """Compute LlamaRMSNorm in one launch."""
    if hidden_states.dtype != module.weight.dtype:
        return type(module).forward(module, hidden_states)
    return rms_norm(hidden_states, module.weight, module.variance_epsilon)[0]


def _layer(module: Any, hidden_states: Tensor, *args: Any, **options: Any) -> Tensor:
    """Compute LlamaDecoderLayer; the launch of its second norm adds the residual."""
    norm = module.post_attention_layernorm
    same = hidden_states.dtype == norm.weight.dtype
    if args or not same or not untouched(norm, patched=True):
        return type(module).forward(module, hidden_states, *args, **options)
    residual = hidden_states
    hidden_states = module.input_layernorm(hidden_states)
    hidden_states, _ = module.self_attn(hidden_states=hidden_states, **options)
    hidden_states, residual = rms_norm(
        hidden_states, norm.weight, norm.variance_epsilon, residual
    )
    return residual + module.mlp(hidden_states)


def _with_rotary(forward: FunctionType) -> Callable[..., Any]:
    """Return the same code, whose global name ROTATE is `rotated`."""
    names = forward.__globals__ | {ROTATE: rotated}
    parts = forward.__name__, forward.__defaults__, forward.__closure__
    result = FunctionType(forward.__code__, names, *parts)
    result.__kwdefaults__ = forward.__kwdefaults__
    return result


def untouched(module: nn.Module, patched: bool = False) -> bool:
    """Return whether a module has no hooks and, unless `patched`, its own forward."""
    hooks = module._forward_hooks or module._forward_pre_hooks
    return not hooks and (patched or "forward" not in vars(module))


def _same(function: Any, known: FunctionType) -> bool:
    """Return whether two functions have the same code, docstrings aside."""
    return _code(function) == _code(known)


def _code(function: Any) -> tuple[Any, ...] | None:
    code = getattr(unwrap(function), "__code__", None)  # checkpointing wraps layers
    if code is None:
        return None
    numbers = [each for each in code.co_consts if type(each) is not str]
    return code.co_code, code.co_names, code.co_varnames, numbers
