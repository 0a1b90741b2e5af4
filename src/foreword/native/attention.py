"""Attention of a whole packed forward in two launches (kernels.py), told by a sheet what every row may see.

Knows tensors and the columns of the sheet; knows nothing about models or trees. `attend` in model/attention.py is the
plain definition.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from functools import cache
from types import ModuleType

import torch
from jaxtyping import Float, Int
from torch import Tensor

MOST = 256
"""Guesses of a tree, at most."""
BITS = 32
"""Ancestors that a word of the sheet tells of."""
TOKEN, POSITION, PLACE, RUN, LENGTH, TRUNK, KEPT, FIRST, COUNT, WORDS = range(10)
"""Columns of a sheet, a line for each packed row; WORDS is the first of MOST // BITS, once for each short window.

TOKEN and POSITION are what the model reads, PLACE the row of the pool that is written, RUN where the sequence's rows of
the pool begin. The row sees keys 0 to TRUNK - 1 of these, and of the keys from there to LENGTH - 1 those whose bit in
the words is set. A row of padding has LENGTH 0. FIRST and COUNT say which rows the tile of this number holds, and KEPT
which row has the logits of this number; neither is about the row whose line they stand in.
"""
PRODUCTS = 64
"""Query rows that look at a block of keys together: rows of one sequence times query heads of one key head."""
SPLIT = 512
"""Keys that one program sums up."""
INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1"


@dataclass(frozen=True, slots=True)
class Scoring:
    """How a layer scores keys."""

    scale: float
    window: int | None = None
    """Positions that a row may see, its own among them."""
    softcap: float | None = None
    sinks: Float[Tensor, "heads"] | None = None


@cache
def library() -> ModuleType | str:
    """The kernels, or why there are none."""
    try:
        from foreword.native import kernels
    except ImportError as error:
        return f"there is no Triton ({error}); pip install triton"
    return kernels


def tiled(heads: int, kv_heads: int) -> int:
    """Rows of a sequence that make a tile."""
    return max(1, PRODUCTS * kv_heads // heads)


def attend(
    query: Float[Tensor, "rows heads dim"],
    keys: Float[Tensor, "pool kv_heads dim"],
    values: Float[Tensor, "pool kv_heads value_dim"],
    sheet: Int[Tensor, "rows width"],
    scoring: Scoring,
    at: tuple[int, int, int],
) -> Float[Tensor, "rows heads value_dim"]:
    """What every row sees of its own text. Sizes alone decide what is launched, so it can be captured.

    `sheet` is int32, as above. `at` is the column where the words for this window begin, the splits of keys, and the
    rows of a tile; no row may have a LENGTH above SPLIT times the splits. A line of a tensor must lie in one piece.
    """
    kernels = library()
    assert isinstance(kernels, ModuleType), kernels
    (rows, heads, dim), (words, splits, tile) = query.shape, at
    kv_heads, value_dim = values.shape[1:]
    wide, value_wide = _power(dim), _power(value_dim)
    sums = query.new_empty(rows, heads, splits, value_dim, dtype=torch.float32)
    peaks, totals = sums.new_empty(2, rows, heads, splits).unbind()
    kernels.partial_sums[rows, kv_heads, splits](
        *(query, keys, values, sheet, sums, peaks, totals),
        *(*query.stride()[:2], *keys.stride()[:2], *values.stride()[:2], sheet.stride(0), words),
        *(scoring.scale, scoring.softcap, scoring.window),
        DIM=dim,
        VALUE_DIM=value_dim,
        WIDE=wide,
        VALUE_WIDE=value_wide,
        GROUP=heads // kv_heads,
        TILE=_power(tile * (heads // kv_heads)),
        KEYS=64 if max(wide, value_wide) * query.itemsize <= 256 else 32,  # what fits into a multiprocessor
        UPCAST=INTERPRETED and query.dtype == torch.bfloat16,
    )
    out = query.new_empty(rows, heads, value_dim)
    kernels.joined_sums[rows, heads](
        *(out, sums, peaks, totals, sheet, scoring.sinks, sheet.stride(0), splits),
        VALUE_DIM=value_dim,
        VALUE_WIDE=value_wide,
    )
    return out


def _power(size: int) -> int:
    """The next power of two, from 16 on, which is the least that a tensor core multiplies."""
    return max(16, 1 << (size - 1).bit_length())
