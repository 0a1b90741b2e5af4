"""Noise and draws in C (draws.c), for tensors on CPU. Where there is no compiler the callers use their own torch code.

Knows arrays; knows nothing about laws, sequences or models.
"""

from __future__ import annotations

import ctypes
from array import array
from collections.abc import Sequence as Many
from ctypes import POINTER, c_float, c_int64, c_void_p
from functools import cache
from pathlib import Path

import torch
from jaxtyping import Float, Int
from torch import Tensor

from foreword.native.compiler import compiled


@cache
def library() -> ctypes.CDLL | None:
    """The compiled functions, or None."""
    made = _made()
    if isinstance(made, str):
        return None
    integers = POINTER(c_int64)
    made.foreword_gumbel.argtypes = [*[integers] * 4, c_int64, c_int64, c_void_p]
    made.foreword_likeliest.argtypes = [c_void_p, c_void_p, integers, c_float, c_int64, c_int64, integers]
    made.foreword_follow.argtypes = [c_void_p, c_void_p, c_float, c_int64, *[c_void_p] * 2, c_int64, *[c_void_p] * 2]
    made.foreword_follow.restype = c_int64
    made.foreword_best.argtypes = [c_void_p, c_int64, c_int64, c_int64, c_void_p, c_void_p]
    return made


def reason() -> str | None:
    """Why there are no compiled functions; None where there are."""
    made = _made()
    return made if isinstance(made, str) else None


@cache
def _made() -> ctypes.CDLL | str:
    return compiled(Path(__file__).with_name("draws.c"))


def _readable(logits: Tensor) -> bool:
    return logits.is_cpu and logits.dtype == torch.float32


def gumbel(
    seeds: Many[int], positions: Many[int], streams: Many[int], rounds: Many[int], vocab: int
) -> Float[Tensor, "rows vocab"] | None:
    """Standard Gumbel noise, one row for each (seed, position, stream word, round); None without a compiler."""
    made, rows = library(), len(seeds)
    if made is None:
        return None
    noise = torch.empty(rows, vocab)
    columns = [(c_int64 * rows)(*column) for column in (seeds, positions, streams, rounds)]
    made.foreword_gumbel(*columns, rows, vocab, noise.data_ptr())
    return noise


def likeliest(
    logits: Float[Tensor, "rows vocab"],
    noise: Float[Tensor, "positions vocab"] | None,
    places: Many[int],
    temperature: float,
) -> list[int] | None:
    """argmax(logits[r] / temperature + noise[places[r]]) of each row, the first of equals.

    None without a compiler, and where logits are not float32 on a CPU.
    """
    made, rows = library(), logits.shape[0]
    if made is None or not _readable(logits):
        return None
    logits = logits.contiguous()
    found, at, address = (c_int64 * rows)(), (c_int64 * rows)(), None
    if noise is not None:
        noise = noise.contiguous()
        at, address = (c_int64 * rows)(*places), noise.data_ptr()
    made.foreword_likeliest(logits.data_ptr(), address, at, temperature, rows, logits.shape[1], found)
    return list(found)


def follow(
    logits: Float[Tensor, "rows vocab"],
    noise: Float[Tensor, "depths vocab"] | None,
    temperature: float,
    tokens: list[int],
    parents: list[int],
) -> tuple[list[int], int] | None:
    """Draw as `likeliest` does, row 0 with noise 0, and go on in the first guess that is what was drawn: its row is the
    one after its number. Returns these guesses and the last draw; None where `likeliest` has none.
    """
    made, guesses = library(), len(tokens)
    if made is None or not _readable(logits):
        return None
    logits = logits.contiguous()
    numbers = array("q", tokens + parents + [0] * (guesses + 1))  # and room for the path and the last draw
    (first, _), size = numbers.buffer_info(), numbers.itemsize * guesses
    noise = None if noise is None else noise.contiguous()
    address = None if noise is None else noise.data_ptr()
    places = (first, first + size, guesses, first + 2 * size, first + 3 * size)
    kept = made.foreword_follow(logits.data_ptr(), address, temperature, logits.shape[1], *places)
    return list(numbers[2 * guesses : 2 * guesses + kept]), numbers[-1]


def best(
    rows: Float[Tensor, "rows vocab"], most: int
) -> tuple[Float[Tensor, "rows most"], Int[Tensor, "rows most"]] | None:
    """The largest of each row of float32, best first, of equals the first one first, and their ids; None without a
    compiler. Where a row has fewer numbers than that, -inf at id 0.
    """
    made, rows = library(), rows.contiguous()
    if made is None:
        return None
    values, ids = torch.empty(len(rows), most), torch.empty(len(rows), most, dtype=torch.int64)
    made.foreword_best(rows.data_ptr(), *rows.shape, most, values.data_ptr(), ids.data_ptr())
    return values, ids
