"""ctypes structures and functions of the C forward (foreword.c).

`layout.check` compares their fields with csrc/model.h and csrc/foreword.h.
"""

import ctypes
from ctypes import POINTER, Structure, c_float, c_int64, c_void_p
from functools import cache

import torch

from foreword.errors import ModelError
from foreword.native import layout
from foreword.native.compiler import SOURCES, compiled
from foreword.native.layout import fields

LANES = 16
"""Numbers per SIMD vector (csrc/simd)."""
ADAPTED = ("qkv", "out", "gate_up", "down")
"""The packed matrices that adapters add to, in the order of C."""
ATTENTION, MLP = 1, 2
"""Bits of `Layer.skipped`."""
WHOLE = 0
BYTES = 1
GROUPS = 2
"""Storage of weights (`Model.coding`): bfloat16, 8 bits, or each matrix with a header
of its own (`Grouped`). Keys and values (`Model.kv_coding`) have one of the first two.
"""
BF16, F16, F32, FACTOR, ZERO = range(1, 6)
"""Storage of scales and offsets (`Grouped.scale`, `Grouped.offset`; 0 = none)."""
BLOCKS = ("Q4_0", "Q4_1", "Q5_0", "Q8_0", "Q4_K", "Q5_K", "Q6_K")
"""Types of GGUF that csrc/products/strips.c reads, in its order."""
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
    _fields_ = fields(c_void_p, "qkv out gate_up down qkv_bias norm mlp_norm")
    _fields_ += fields(c_void_p, "query_norm key_norm said_norm mlp_said_norm cos")
    _fields_ += fields(c_void_p, "sin given_norm")
    _fields_ += fields(c_int64, "keys values window skipped normed")
    _fields_ += fields(c_void_p, "taps decay step_bias gated_norm")
    _fields_ += fields(c_int64, "number")
    _fields_ += fields(c_void_p, "router expert_bias norm_bias mlp_norm_bias")
    _fields_ += fields(c_void_p, "out_bias up_bias down_bias cross_q cross_out")
    _fields_ += fields(c_void_p, "cross_norm cross_norm_bias cross_q_bias")
    _fields_ += fields(c_void_p, "cross_out_bias bias router_bias sinks")


class Grouped(Structure):
    """The header of a matrix whose weights have scales by group (groups.c)."""

    __slots__ = ()
    _fields_ = fields(c_int64, "bits group span scale offset strip matrix least")
    _fields_ += fields(c_int64, "most counted")
    _fields_ += fields(ctypes.c_int8 * 16, "level")
    _fields_ += fields(ctypes.c_char * 32, "unused")


class Experts(Structure):
    """Sizes of the experts, the same in every layer that has them (experts.c)."""

    __slots__ = ()
    _fields_ = fields(c_int64, "count top_k shared inner sigmoid normed gated")
    _fields_ += fields(c_float, "scale")


class Routing(Structure):
    """Scratch memory for the routing of rows to experts."""

    __slots__ = ()
    _fields_ = fields(c_void_p, "expert place weight row first gathered gated")
    _fields_ += fields(c_void_p, "outputs steps")


class LowRank(Structure):
    """What an adapter adds to a packed matrix (low_rank.c)."""

    __slots__ = ()
    _fields_ = fields(c_int64, "rank count")
    _fields_ += fields(c_void_p, "down up first")


class Recurrence(Structure):
    """Sizes of recurrent layers (recurrent.c)."""

    __slots__ = ()
    _fields_ = fields(c_int64, "key_heads heads key_dim dim taps channels spread")


class State(Structure):
    """The recurrent state of one sequence."""

    __slots__ = ()
    _fields_ = fields(c_int64, "folded back slots")
    _fields_ += fields(c_void_p, "held tail taken inputs")


class Model(Structure):
    """A model: sizes, weights, layers, and how its architecture differs from Llama's (0
    = not at all).
    """

    __slots__ = ()
    _fields_ = fields(c_int64, "layers hidden heads kv_heads dim intermediate vocab")
    _fields_ += fields(c_float, "eps scale")
    _fields_ += fields(c_void_p, "embedding norm head")
    _fields_ += fields(POINTER(Layer), "layer")
    _fields_ += fields(c_int64, "coding")
    _fields_ += fields(c_void_p, "ids")
    _fields_ += fields(c_int64, "rotary_dim activation broad")
    _fields_ += fields(c_float, "embedding_scale score_cap logit_cap residual_scale")
    _fields_ += fields(c_float, "logit_scale")
    _fields_ += fields(c_void_p, "table")
    _fields_ += fields(c_int64, "table_rows table_kind query_stride")
    _fields_ += fields(POINTER(Recurrence), "recurrence")
    _fields_ += fields(POINTER(Experts), "experts")
    _fields_ += fields(c_void_p, "norm_bias head_bias position_embedding")
    _fields_ += fields(c_int64, "position_count centred plain parallel")
    _fields_ += fields(c_int64, "norm_after_rotary")
    _fields_ += fields(c_void_p, "query_scale")
    _fields_ += fields(c_int64, "kv_coding distances")
    _fields_ += fields(c_void_p, "stream")
    _fields_ += fields(c_int64, "portable")
    _fields_ += fields(c_void_p, "join embedding_norm state_norm pairs")


class Span(Structure):
    """The rows of one sequence in a forward."""

    __slots__ = ()
    _fields_ = fields(c_int64, "start stop past held first_chain")
    _fields_ += fields(c_void_p, "pages parents")
    _fields_ += fields(c_int64, "mutual committed")
    _fields_ += fields(POINTER(State), "state")
    _fields_ += fields(c_int64, "placed")
    _fields_ += fields(c_void_p * 2, "reach")
    _fields_ += fields(c_int64, "source")
    _fields_ += fields(c_void_p, "source_pages")
    _fields_ += fields(POINTER(LowRank), "adapter")


class Forward(Structure):
    """One forward: input rows, outputs and scratch memory."""

    __slots__ = ()
    _fields_ = fields(c_int64, "rows spans kept")
    _fields_ += fields(c_void_p, "tokens positions keep")
    _fields_ += fields(POINTER(Span), "span")
    _fields_ += fields(c_void_p, "logits residual wide scores narrow steps")
    _fields_ += fields(c_int64, "longest hidden_layer_count")
    _fields_ += fields(c_void_p, "hidden_layers hidden_states given states")
    _fields_ += fields(c_int64, "room kv_only")
    _fields_ += fields(POINTER(Routing), "routing")
    _fields_ += fields(c_void_p, "page image")
    _fields_ += fields(c_int64, "image_layers")
    _fields_ += fields(c_void_p, "unpacked")
    _fields_ += fields(c_int64, "first_layer")
    _fields_ += fields(c_void_p, "sums halves")
    _fields_ += fields(c_int64, "most_sums")


_MIRRORS = {
    mirror.__name__: mirror
    for mirror in (
        Grouped,
        Layer,
        LowRank,
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
_FUNCTIONS = {
    "forward": "ppi",
    "nodes": "iplp",
    "touch": "plli",
    "grow": "ppppi",
    "pack": "ppll",
    "coded_bytes": "lli:l",
    "quantize": "pplli",
    "strips": "ipllpl",
    "numbers": "ipllpi",
    "turns": "pppl",
    "peak": "il:l",
    "move": "ppll",
    "write": "plpplp",
    "shift": "ppll",
    "stream": "pllppl:p",
    "stream_failed": "p:i",
    "end_stream": "p",
}
"""Types of the functions in C, as `layout.declare` reads them."""


@cache
def library() -> ctypes.CDLL | str:
    """Return the compiled library, or the reason why there is none.

    Raises ModelError if a structure differs from the one in C.
    """
    lib = compiled(SOURCES / "foreword.c")
    if isinstance(lib, ctypes.CDLL):
        layout.check(lib, _MIRRORS, "native/forward.py")
        layout.declare(lib, _FUNCTIONS)
        lib.foreword_use_amx(1)
    return lib


def amx() -> bool:
    """Return whether products use the matrix registers of the processor (AMX)."""
    lib = library()
    return isinstance(lib, ctypes.CDLL) and bool(lib.foreword_uses_amx())


def factor() -> torch.dtype:
    """Return the dtype of activations in C: bfloat16, or float32 from bfloat16."""
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
