"""ctypes structures and functions of the C forward (foreword.c).

`layout.check` compares their fields with csrc/model.h and csrc/foreword.h.
"""

from __future__ import annotations

import ctypes
from ctypes import POINTER, Structure, c_float, c_int64, c_void_p
from functools import cache

import torch

from foreword.errors import ModelError
from foreword.native import layout
from foreword.native.compiler import SOURCES, compiled

LANES = 16
"""Numbers per SIMD vector (csrc/simd)."""
ATTENTION, MLP = 1, 2
"""Bits of `Layer.skipped`."""
WHOLE = 0
BYTES = 1
GROUPS = 2
"""Storage of weights (`Model.coding`): bfloat16, 8 bits, or each matrix with a header
of its own (`Grouped`). Keys and values (`Model.kv_coding`) have one of the first two.
"""
BF16, F16, F32, FACTOR, ZERO = range(1, 6)
BLOCKS = ("Q4_0", "Q4_1", "Q5_0", "Q8_0", "Q4_K", "Q5_K", "Q6_K")
"""Types of GGUF that csrc/products/strips.c reads, in its order."""
"""Storage of scales and offsets (`Grouped.scale`, `Grouped.offset`; 0 = there are
none).
"""
SILU, GELU, GELU_ERF, RELU, RELU_SQUARED, CLAMPED = range(6)
"""Activations (`Model.activation`); GELU is the tanh form.

Gated MLPs use one of the first two, or the last.
"""
GROUP = 32
"""Inputs that share a scale in 4-bit weights."""


class Layer(Structure):
    """The weights of a layer, where its keys and values start in a page, and which of
    its halves are skipped.
    """

    __slots__ = ()
    _fields_ = [(n, c_void_p) for n in ("qkv", "out", "gate_up", "down")]
    _fields_ += [
        (n, c_void_p)
        for n in ("qkv_bias", "norm", "mlp_norm", "query_norm", "key_norm")
    ]
    _fields_ += [
        (n, c_void_p)
        for n in ("said_norm", "mlp_said_norm", "cos", "sin", "given_norm")
    ]
    _fields_ += [(n, c_int64) for n in ("keys", "values")]
    _fields_ += [(n, c_int64) for n in ("window", "skipped", "normed")]
    _fields_ += [(n, c_void_p) for n in ("taps", "decay", "step_bias", "gated_norm")]
    _fields_ += [("number", c_int64), ("router", c_void_p), ("expert_bias", c_void_p)]
    _fields_ += [
        (n, c_void_p)
        for n in ("norm_bias", "mlp_norm_bias", "out_bias", "up_bias", "down_bias")
    ]
    _fields_ += [
        (n, c_void_p)
        for n in (
            "cross_q",
            "cross_out",
            "cross_norm",
            "cross_norm_bias",
            "cross_q_bias",
        )
    ]
    _fields_ += [
        (n, c_void_p) for n in ("cross_out_bias", "bias", "router_bias", "sinks")
    ]


class Grouped(Structure):
    """The header of a matrix whose weights have scales by group (groups.c)."""

    __slots__ = ()
    _fields_ = [
        (n, c_int64)
        for n in ("bits", "group", "span", "scale", "offset", "strip", "matrix")
    ]
    _fields_ += [("least", c_int64), ("most", c_int64)]
    _fields_ += [("level", ctypes.c_int8 * 16), ("unused", ctypes.c_char * 40)]


class Experts(Structure):
    """Sizes of the experts, the same in every layer that has them (experts.c)."""

    __slots__ = ()
    _fields_ = [
        (n, c_int64)
        for n in ("count", "top_k", "shared", "inner", "sigmoid", "normed", "gated")
    ]
    _fields_ += [("scale", c_float)]


class Routing(Structure):
    """Scratch memory for the routing of rows to experts."""

    __slots__ = ()
    _fields_ = [
        (n, c_void_p)
        for n in (
            "expert",
            "place",
            "weight",
            "row",
            "first",
            "gathered",
            "gated",
            "outputs",
            "steps",
        )
    ]


class Recurrence(Structure):
    """Sizes of recurrent layers (recurrent.c)."""

    __slots__ = ()
    _fields_ = [
        (n, c_int64)
        for n in ("key_heads", "heads", "key_dim", "dim", "taps", "channels", "spread")
    ]


class State(Structure):
    """The recurrent state of one sequence."""

    __slots__ = ()
    _fields_ = [(n, c_int64) for n in ("folded", "back", "slots")]
    _fields_ += [(n, c_void_p) for n in ("held", "tail", "taken", "inputs")]


class Model(Structure):
    """A model: sizes, weights, layers, and how its architecture differs from Llama's (0
    = not at all).
    """

    __slots__ = ()
    _fields_ = [
        (n, c_int64)
        for n in (
            "layers",
            "hidden",
            "heads",
            "kv_heads",
            "dim",
            "intermediate",
            "vocab",
        )
    ]
    _fields_ += [("eps", c_float), ("scale", c_float)]
    _fields_ += [("embedding", c_void_p), ("norm", c_void_p), ("head", c_void_p)]
    _fields_ += [("layer", POINTER(Layer)), ("coding", c_int64), ("ids", c_void_p)]
    _fields_ += [(n, c_int64) for n in ("rotary_dim", "activation", "broad")]
    _fields_ += [
        (n, c_float)
        for n in (
            "embedding_scale",
            "score_cap",
            "logit_cap",
            "residual_scale",
            "logit_scale",
        )
    ]
    _fields_ += [
        ("table", c_void_p),
        ("table_rows", c_int64),
        ("query_stride", c_int64),
    ]
    _fields_ += [("recurrence", POINTER(Recurrence)), ("experts", POINTER(Experts))]
    _fields_ += [
        (n, c_void_p) for n in ("norm_bias", "head_bias", "position_embedding")
    ]
    _fields_ += [
        (n, c_int64)
        for n in ("position_count", "centred", "plain", "parallel", "norm_after_rotary")
    ]
    _fields_ += [
        ("query_scale", c_void_p),
        ("kv_coding", c_int64),
        ("distances", c_int64),
        ("stream", c_void_p),
        ("portable", c_int64),
    ]
    _fields_ += [
        (n, c_void_p) for n in ("join", "embedding_norm", "state_norm", "pairs")
    ]


class Span(Structure):
    """The rows of one sequence in a forward."""

    __slots__ = ()
    _fields_ = [(n, c_int64) for n in ("start", "stop", "past", "held", "first_chain")]
    _fields_ += [("pages", c_void_p), ("parents", c_void_p), ("mutual", c_int64)]
    _fields_ += [("committed", c_int64), ("state", POINTER(State))]
    _fields_ += [
        ("placed", c_int64),
        ("reach", c_void_p * 2),
        ("source", c_int64),
        ("source_pages", c_void_p),
    ]


class Forward(Structure):
    """One forward: input rows, outputs and scratch memory."""

    __slots__ = ()
    _fields_ = [(n, c_int64) for n in ("rows", "spans", "kept")]
    _fields_ += [(n, c_void_p) for n in ("tokens", "positions", "keep")]
    _fields_ += [("span", POINTER(Span))]
    _fields_ += [
        (n, c_void_p)
        for n in ("logits", "residual", "wide", "scores", "narrow", "steps")
    ]
    _fields_ += [("longest", c_int64), ("hidden_layer_count", c_int64)]
    _fields_ += [(n, c_void_p) for n in ("hidden_layers", "hidden_states", "given")]
    _fields_ += [
        ("states", c_void_p),
        ("room", c_int64),
        ("kv_only", c_int64),
        ("routing", POINTER(Routing)),
    ]
    _fields_ += [
        ("page", c_void_p),
        ("image", c_void_p),
        ("image_layers", c_int64),
        ("unpacked", c_void_p),
        ("first_layer", c_int64),
    ]


_MIRRORS = {
    mirror.__name__: mirror
    for mirror in (
        Grouped,
        Layer,
        Recurrence,
        Experts,
        Model,
        State,
        Routing,
        Span,
        Forward,
    )
}
"""Classes by the name of their structure in C."""


@cache
def library() -> ctypes.CDLL | str:
    """Return the compiled library, or the reason why there is none.

    Raises ModelError if a structure differs from the one in C.
    """
    lib = compiled(SOURCES / "foreword.c")
    if isinstance(lib, ctypes.CDLL):
        layout.check(lib, _MIRRORS, "native/forward.py")
        lib.foreword_forward.argtypes = [POINTER(Model), POINTER(Forward), ctypes.c_int]
        lib.foreword_pack.argtypes = [c_void_p, c_void_p, c_int64, c_int64]
        lib.foreword_coded_bytes.argtypes = [c_int64, c_int64, ctypes.c_int]
        lib.foreword_coded_bytes.restype = c_int64
        lib.foreword_quantize.argtypes = [
            c_void_p,
            c_void_p,
            c_int64,
            c_int64,
            ctypes.c_int,
        ]
        lib.foreword_strips.argtypes = [
            ctypes.c_int,
            c_void_p,
            c_int64,
            c_int64,
            c_void_p,
            c_int64,
        ]
        strips = lib.foreword_strips.argtypes
        lib.foreword_numbers.argtypes = strips[:-1]
        lib.foreword_turns.argtypes = [c_void_p, c_void_p, c_void_p, c_int64]
        lib.foreword_turns.restype = None
        lib.foreword_peak.argtypes = [ctypes.c_int, c_int64]
        lib.foreword_peak.restype = c_int64
        lib.foreword_move.argtypes = [POINTER(Model), c_void_p, c_int64, c_int64]
        lib.foreword_write.argtypes = [
            POINTER(Model),
            c_int64,
            c_void_p,
            c_void_p,
            c_int64,
            c_void_p,
        ]
        lib.foreword_shift.argtypes = [POINTER(Model), POINTER(State), c_int64, c_int64]
        lib.foreword_stream.argtypes = [
            ctypes.c_char_p,
            c_int64,
            c_int64,
            c_void_p,
            c_void_p,
            c_int64,
        ]
        lib.foreword_stream.restype = c_void_p
        lib.foreword_stream_failed.argtypes = lib.foreword_end_stream.argtypes = [
            c_void_p
        ]
        lib.foreword_use_amx(1)
    return lib


def amx() -> bool:
    """Return whether products use the matrix registers of the processor (AMX)."""
    lib = library()
    return isinstance(lib, ctypes.CDLL) and bool(lib.foreword_uses_amx())


def factor() -> torch.dtype:
    """Return the dtype of activations in C: bfloat16, or float32 widened from
    bfloat16.
    """
    return (
        torch.bfloat16
        if needed().foreword_factor_bytes() == torch.bfloat16.itemsize
        else torch.float32
    )


def reason() -> str | None:
    """Return why the C library is missing; None if it is there."""
    lib = library()
    return lib if isinstance(lib, str) else None


def needed() -> ctypes.CDLL:
    """Return the compiled library. Raises ModelError if there is none."""
    lib = library()
    if isinstance(lib, str):
        raise ModelError(lib)
    return lib
