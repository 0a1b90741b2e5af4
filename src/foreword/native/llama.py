"""The forward of Llama-like models in C (llama.c): its structures and functions, as ctypes sees them.

Knows the C side's layout, which must agree with it field by field; knows nothing about Hugging Face's models.
"""

from __future__ import annotations

import ctypes
from ctypes import POINTER, Structure, c_float, c_int64, c_void_p
from functools import cache
from pathlib import Path

import torch

from foreword.errors import ModelError
from foreword.native.compiler import compiled

LANES = 16
"""Numbers side by side (lanes.c)."""
ATTENTION, MLP = 1, 2
"""Bits of `Layer.skipped`."""
WHOLE, BYTES, NIBBLES = 0, 1, 2
"""How weights are coded (`Model.coding`): bfloat16, 8 bits, 4 bits."""
SILU, GELU, GELU_ERF, RELU, RELU_SQUARED = range(5)
"""What an MLP does (`Model.activation`); GELU in its form with tanh. Gates do one of the first two."""
GROUP = 32
"""Inputs of a product that share a scale where its weights have 4 bits."""


class Layer(Structure):
    """The weights of a layer, where its keys and values lie, and which of its halves do nothing."""

    _fields_ = [(n, c_void_p) for n in ("qkv", "out", "gate_up", "down")]
    _fields_ += [(n, c_void_p) for n in ("qkv_bias", "norm", "mlp_norm", "query_norm", "key_norm")]
    _fields_ += [(n, c_void_p) for n in ("said_norm", "mlp_said_norm", "cos", "sin", "given_norm")]
    _fields_ += [(n, c_void_p) for n in ("keys", "values")]
    _fields_ += [(n, c_int64) for n in ("window", "skipped", "normed")]
    _fields_ += [(n, c_void_p) for n in ("taps", "decay", "step_bias", "gated_norm")]
    _fields_ += [("number", c_int64), ("router", c_void_p), ("leaning", c_void_p)]
    _fields_ += [(n, c_void_p) for n in ("norm_bias", "mlp_norm_bias", "out_bias", "up_bias", "down_bias")]


class Experts(Structure):
    """Those of every layer that has some (experts.c)."""

    _fields_ = [(n, c_int64) for n in ("count", "asked", "shared", "inner", "sigmoid", "normed", "gated")]
    _fields_ += [("scale", c_float)]


class Asked(Structure):
    """Working memory for what rows ask of experts."""

    _fields_ = [
        (n, c_void_p) for n in ("expert", "place", "trust", "row", "first", "gathered", "gated", "said", "steps")
    ]


class Recurrence(Structure):
    """Sizes of such layers."""

    _fields_ = [(n, c_int64) for n in ("key_heads", "heads", "key_dim", "dim", "taps", "channels", "spread")]


class State(Structure):
    """One sequence's, for the C side."""

    _fields_ = [(n, c_int64) for n in ("folded", "back", "slots")]
    _fields_ += [(n, c_void_p) for n in ("held", "tail", "taken", "inputs")]


class Model(Structure):
    """A model: sizes, weights, layers, and what sets its architecture apart from Llama's (0 = nothing)."""

    _fields_ = [(n, c_int64) for n in ("layers", "hidden", "heads", "kv_heads", "dim", "intermediate", "vocab")]
    _fields_ += [("eps", c_float), ("scale", c_float)]
    _fields_ += [("embedding", c_void_p), ("norm", c_void_p), ("head", c_void_p)]
    _fields_ += [("layer", POINTER(Layer)), ("coding", c_int64), ("ids", c_void_p)]
    _fields_ += [(n, c_int64) for n in ("turned", "activation", "broad")]
    _fields_ += [(n, c_float) for n in ("embedding_scale", "score_cap", "logit_cap", "residual_scale", "logit_scale")]
    _fields_ += [("table", c_void_p), ("tabled", c_int64), ("apart", c_int64)]
    _fields_ += [("recurrence", POINTER(Recurrence)), ("experts", POINTER(Experts))]
    _fields_ += [(n, c_void_p) for n in ("norm_bias", "head_bias", "places")]
    _fields_ += [(n, c_int64) for n in ("placed", "centred", "plain", "parallel", "turned_first")]
    _fields_ += [("warmth", c_void_p)]


class Span(Structure):
    """One sequence's rows of a forward."""

    _fields_ = [(n, c_int64) for n in ("start", "stop", "extent", "past", "held", "trunk")]
    _fields_ += [("parents", c_void_p), ("mutual", c_int64)]
    _fields_ += [("sure", c_int64), ("state", POINTER(State))]


class Forward(Structure):
    """One forward: what to read, what to keep, where to work."""

    _fields_ = [(n, c_int64) for n in ("rows", "spans", "kept")]
    _fields_ += [(n, c_void_p) for n in ("tokens", "positions", "keep")]
    _fields_ += [("span", POINTER(Span))]
    _fields_ += [(n, c_void_p) for n in ("logits", "residual", "wide", "scores", "narrow", "steps")]
    _fields_ += [("longest", c_int64), ("heeded", c_int64)]
    _fields_ += [(n, c_void_p) for n in ("heed", "heard", "given")]
    _fields_ += [("states", c_void_p), ("room", c_int64), ("remembered", c_int64), ("asked", POINTER(Asked))]


@cache
def library() -> ctypes.CDLL | str:
    """The compiled kernel, or why there is none."""
    made = compiled(Path(__file__).with_name("llama.c"))
    if isinstance(made, ctypes.CDLL):
        made.foreword_forward.argtypes = [POINTER(Model), POINTER(Forward), ctypes.c_int]
        made.foreword_pack.argtypes = [c_void_p, c_void_p, c_int64, c_int64]
        made.foreword_coded_bytes.argtypes = [c_int64, c_int64, ctypes.c_int]
        made.foreword_coded_bytes.restype = c_int64
        made.foreword_quantize.argtypes = [c_void_p, c_void_p, c_int64, c_int64, ctypes.c_int]
        made.foreword_move.argtypes = [POINTER(Model), c_int64, c_int64]
        made.foreword_shift.argtypes = [POINTER(Model), POINTER(State), c_int64, c_int64]
        made.foreword_use_amx(1)
    return made


def amx() -> bool:
    """Whether products are made in the matrix registers of the processor."""
    made = library()
    return isinstance(made, ctypes.CDLL) and bool(made.foreword_uses_amx())


def factor() -> torch.dtype:
    """How the C side holds what it multiplies weights with: bfloat16, or float32 that is widened from it."""
    return torch.bfloat16 if needed().foreword_factor_bytes() == torch.bfloat16.itemsize else torch.float32


def reason() -> str | None:
    """Why there is no kernel here; None where there is one."""
    made = library()
    return made if isinstance(made, str) else None


def needed() -> ctypes.CDLL:
    """The compiled kernel. Raises ModelError where there is none."""
    made = library()
    if isinstance(made, str):
        raise ModelError(made)
    return made
