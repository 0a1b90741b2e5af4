"""Whole trees of guesses in one C call (tree.c): its structure and how it is asked.

Knows the C side's layout, which must agree with it field by field; knows nothing about models or drafters.
"""

from __future__ import annotations

import ctypes
from ctypes import POINTER, Structure, byref, c_double, c_float, c_int64, c_void_p
from dataclasses import dataclass

from jaxtyping import Float
from torch import Tensor

from foreword.native import llama


class Growth(Structure):
    """What is asked for, and room for what comes out."""

    _fields_ = [(n, c_int64) for n in ("most", "breadth", "deep", "width", "reads")]
    _fields_ += [("floor", c_double), ("temperature", c_float), ("scale", c_float)]
    _fields_ += [("noise", c_void_p), ("stride", c_int64), ("ends", c_int64), ("end", c_void_p)]
    _fields_ += [("count", c_int64), ("held", c_int64)]
    _fields_ += [(n, c_void_p) for n in ("tokens", "parents", "chances", "read", "child", "value")]


_ARGUMENTS = [POINTER(llama.Model), POINTER(llama.Forward), POINTER(Growth), c_void_p, ctypes.c_int]


@dataclass(frozen=True, slots=True)
class Ask:
    """What a tree of guesses should be like; the names are those of draft/tree.py, which says what they mean."""

    most: int
    breadth: int
    deep: int
    width: int
    reads: int
    floor: float
    temperature: float
    scale: float
    noise: Float[Tensor, "deep target_vocab"] | None
    """The noise of the next positions; None when greedy."""
    ends: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Grown:
    """A tree as it came to be: every guess that was thought of, parents before children, and which were read."""

    tokens: list[int]
    parents: list[int]
    chances: list[float]
    read: list[int]
    children: list[tuple[list[int], list[float]]]
    """Tokens that may come next, best first, and their values: after the text, then after each guess that was read."""


def grow(
    library: ctypes.CDLL,
    model: llama.Model,
    forward: llama.Forward,
    ask: Ask,
    scratch: Float[Tensor, "vocab"],
    threads: int,
) -> Grown:
    """Read what `forward` describes, then grow. Its logits and its scratch must have room for `ask.width` rows."""
    most = (ask.reads + 1) * ask.breadth
    tokens, parents, chances = (c_int64 * most)(), (c_int64 * most)(), (c_double * most)()
    read, child, value = (c_int64 * (ask.reads + 1))(), (c_int64 * most)(), (c_float * most)()
    ends = (c_int64 * len(ask.ends))(*ask.ends)
    noise = None if ask.noise is None else ask.noise.contiguous()
    library.foreword_grow.argtypes = _ARGUMENTS
    growth = Growth(
        ask.most, ask.breadth, ask.deep, ask.width, ask.reads, ask.floor, ask.temperature, ask.scale,
        None if noise is None else noise.data_ptr(), 0 if noise is None else noise.shape[1],
        len(ask.ends), ctypes.addressof(ends), 0, 0,
        *map(ctypes.addressof, (tokens, parents, chances, read, child, value)),
    )  # fmt: skip
    library.foreword_grow(byref(model), byref(forward), byref(growth), scratch.data_ptr(), threads)
    count, held, breadth = growth.count, growth.held, ask.breadth
    places = [slice(row * breadth, (row + 1) * breadth) for row in range(held + 1)]
    children = [([token for token in child[at] if token >= 0], value[at]) for at in places]
    return Grown(tokens[:count], parents[:count], chances[:count], read[:held], children)
