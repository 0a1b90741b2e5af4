"""Gumbel noise, draws and top-k in C (sampling.c), for CPU tensors.

Without a compiler callers use their torch code.
"""

from __future__ import annotations

import ctypes
from array import array
from collections.abc import Sequence
from ctypes import POINTER, c_float, c_int64, c_void_p
from functools import cache

import torch
from jaxtyping import Float, Int
from torch import Tensor

from foreword.native.compiler import SOURCES, compiled


@cache
def library() -> ctypes.CDLL | None:
    """Return the compiled functions; None without a compiler."""
    lib = _compiled()
    if isinstance(lib, str):
        return None
    integers = POINTER(c_int64)
    lib.foreword_gumbel.argtypes = [*[integers] * 4, c_int64, c_int64, c_void_p]
    lib.foreword_likeliest.argtypes = [
        c_void_p,
        c_void_p,
        integers,
        c_float,
        c_int64,
        c_int64,
        integers,
    ]
    lib.foreword_follow.argtypes = [
        c_void_p,
        c_void_p,
        c_float,
        c_int64,
        *[c_void_p] * 2,
        c_int64,
        *[c_void_p] * 2,
    ]
    lib.foreword_follow.restype = c_int64
    lib.foreword_best.argtypes = [
        c_void_p,
        c_int64,
        c_int64,
        c_int64,
        c_void_p,
        c_void_p,
    ]
    return lib


def reason() -> str | None:
    """Return why there are no compiled functions; None if there are."""
    lib = _compiled()
    return lib if isinstance(lib, str) else None


@cache
def _compiled() -> ctypes.CDLL | str:
    return compiled(SOURCES / "sampling.c")


def _readable(logits: Tensor) -> bool:
    return logits.is_cpu and logits.dtype == torch.float32


def gumbel(
    seeds: Sequence[int],
    positions: Sequence[int],
    streams: Sequence[int],
    rounds: Sequence[int],
    vocab: int,
) -> Float[Tensor, "rows vocab"] | None:
    """Return standard Gumbel noise, a row per (seed, position, stream word, round);
    None without a compiler.
    """
    lib, rows = library(), len(seeds)
    if lib is None:
        return None
    noise = torch.empty(rows, vocab, dtype=torch.float32)
    columns = [
        (c_int64 * rows)(*column) for column in (seeds, positions, streams, rounds)
    ]
    lib.foreword_gumbel(*columns, rows, vocab, noise.data_ptr())
    return noise


def likeliest(
    logits: Float[Tensor, "rows vocab"],
    noise: Float[Tensor, "positions vocab"] | None,
    places: Sequence[int],
    temperature: float,
) -> list[int] | None:
    """Return argmax(logits[r] / temperature + noise[places[r]]) of each row, the first
    of equals.

    None without a compiler, or if logits are not float32 on a CPU.
    """
    lib, rows = library(), logits.shape[0]
    if lib is None or not _readable(logits):
        return None
    logits = logits.contiguous()
    tokens = (c_int64 * rows)()
    at = (c_int64 * rows)()
    address = None
    if noise is not None:
        noise = noise.contiguous()
        at, address = (c_int64 * rows)(*places), noise.data_ptr()
    lib.foreword_likeliest(
        logits.data_ptr(), address, at, temperature, rows, logits.shape[1], tokens
    )
    return list(tokens)


def follow(
    logits: Float[Tensor, "rows vocab"],
    noise: Float[Tensor, "depths vocab"] | None,
    temperature: float,
    tokens: list[int],
    parents: list[int],
) -> tuple[list[int], int] | None:
    """Draw as `likeliest` does, starting with row 0 and noise 0; after each draw go to
    the first child with that token.

    The row of draft token i is i + 1. Returns the accepted draft tokens and the last
    draw; None as `likeliest`.
    """
    lib, draft_tokens = library(), len(tokens)
    if lib is None or not _readable(logits):
        return None
    logits = logits.contiguous()
    # plus room for the path and the last draw
    numbers = array("q", tokens + parents + [0] * (draft_tokens + 1))
    (first, _), size = numbers.buffer_info(), numbers.itemsize * draft_tokens
    noise = None if noise is None else noise.contiguous()
    address = None if noise is None else noise.data_ptr()
    places = (first, first + size, draft_tokens, first + 2 * size, first + 3 * size)
    kept = lib.foreword_follow(
        logits.data_ptr(), address, temperature, logits.shape[1], *places
    )
    return list(numbers[2 * draft_tokens : 2 * draft_tokens + kept]), numbers[-1]


def best(
    rows: Float[Tensor, "rows vocab"], most: int
) -> tuple[Float[Tensor, "rows most"], Int[Tensor, "rows most"]] | None:
    """Return the `most` largest of each float32 row, best first and the first of equals
    first, and their ids.

    A row with fewer numbers is filled with -inf at id 0. None without a compiler.
    """
    lib, rows = library(), rows.contiguous()
    if lib is None:
        return None
    values = torch.empty(len(rows), most, dtype=torch.float32)
    ids = torch.empty(len(rows), most, dtype=torch.int64)
    lib.foreword_best(
        rows.data_ptr(), *rows.shape, most, values.data_ptr(), ids.data_ptr()
    )
    return values, ids
