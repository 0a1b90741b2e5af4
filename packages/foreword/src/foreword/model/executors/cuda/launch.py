"""Attention of a packed forward in two kernel launches (kernels.py), described by a row
table.

The reference definition is `attend` in executors/torch/attention.py.
"""

import os
from dataclasses import dataclass
from functools import cache
from types import ModuleType

import torch
from jaxtyping import Float, Int
from torch import Tensor

MOST = 256
"""Largest number of draft tokens in a tree."""
BITS = 32
"""Ancestors a word of the row table: one bit each."""
TOKEN, POSITION, PLACE, RUN, LENGTH, CHAIN_ROWS, KEPT, FIRST, COUNT, WORDS = range(10)
"""Columns of a row table, one line a packed row; WORDS is the first of MOST // BITS
columns, for each short window.

TOKEN and POSITION are the model's input, PLACE the pool row that is written, RUN the
first pool row of the sequence. The row attends to keys 0 to CHAIN_ROWS - 1 of the
sequence and, from there to LENGTH - 1, to those whose bit in the words is set. A
padding row has LENGTH 0. Line i also holds FIRST and COUNT, the rows of tile i, and
KEPT, the row of logits i; these three do not describe row i.
"""
PRODUCTS = 64
"""Query rows in one product with a block of keys: rows of one sequence times query
heads of one key head.
"""
SPLIT = 512
"""Keys that one program sums over."""
INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1"


@dataclass(frozen=True, slots=True)
class Scoring:
    """Attention options of a layer."""

    scale: float
    window: int | None = None
    """Positions that a row attends to, its own included; None = all."""
    softcap: float | None = None
    sinks: Float[Tensor, "heads"] | None = None


@cache
def library() -> ModuleType | str:
    """Return the kernels, or the reason why there are none."""
    try:
        from foreword.model.executors.cuda import kernels
    except ImportError as error:
        return f"cannot import Triton ({error}); pip install triton"
    return kernels


@cache
def fused_library() -> ModuleType:
    """Return the kernels beside attention, where `library` has found Triton."""
    from foreword.model.executors.cuda import fused_kernels

    return fused_kernels


def tiled(heads: int, kv_heads: int) -> int:
    """Return the number of rows in a tile."""
    return max(1, PRODUCTS * kv_heads // heads)


def attend(
    query: Float[Tensor, "rows heads dim"],
    keys: Float[Tensor, "pool kv_heads dim"],
    values: Float[Tensor, "pool kv_heads value_dim"],
    table: Int[Tensor, "rows width"],
    scoring: Scoring,
    at: tuple[int, int, int],
) -> Float[Tensor, "rows heads value_dim"]:
    """Compute attention of every row over its own sequence. Launches depend on sizes
    only, so they can be captured.

    `table` is int32, as above. `at` is the first column of this window's words, the
    splits of keys, and the rows of a tile; no LENGTH may exceed SPLIT times the splits.
    The last dimension of each tensor must be contiguous.
    """
    kernels = library()
    assert isinstance(kernels, ModuleType), kernels
    (rows, heads, dim), (words, splits, tile) = query.shape, at
    kv_heads, value_dim = values.shape[1:]
    wide, value_wide = power(dim), power(value_dim)
    sums = query.new_empty(rows, heads, splits, value_dim, dtype=torch.float32)
    peaks, totals = sums.new_empty(2, rows, heads, splits).unbind()
    kernels.partial_sums[rows, kv_heads, splits](
        *(query, keys, values, table, sums, peaks, totals),
        *(
            *query.stride()[:2],
            *keys.stride()[:2],
            *values.stride()[:2],
            table.stride(0),
            words,
        ),
        *(scoring.scale, scoring.softcap, scoring.window),
        DIM=dim,
        VALUE_DIM=value_dim,
        WIDE=wide,
        VALUE_WIDE=value_wide,
        GROUP=heads // kv_heads,
        TILE=power(tile * (heads // kv_heads)),
        KEYS=64
        if max(wide, value_wide) * query.itemsize <= 256
        else 32,  # fits into the shared memory of a multiprocessor
        UPCAST=INTERPRETED and query.dtype == torch.bfloat16,
    )
    out = query.new_empty(rows, heads, value_dim)
    kernels.joined_sums[rows, heads](
        *(out, sums, peaks, totals, table, scoring.sinks, table.stride(0), splits),
        VALUE_DIM=value_dim,
        VALUE_WIDE=value_wide,
    )
    return out


def power(size: int) -> int:
    """Return the next power of two, at least 16, the smallest tile of a tensor core."""
    return max(16, 1 << (size - 1).bit_length())
