"""Triton kernels for attention of packed rows; keys and values are read in place.

The row table of launch.py (`sheet` here) says which keys each row attends to. Imports
Triton, so it is imported only where needed. Flash attention: Dao et al. 2022; split
over keys: Dao et al. 2023.
"""

from typing import no_type_check

import triton
import triton.language as tl

from foreword.model.executors.cuda import launch

# A row's bits depend on its own query and keys only. Keys are read in blocks that start
# at multiples of KEYS from the start of the sequence, and summed in splits of SPLIT
# keys, whatever else is in the forward. A block in which a row attends to no key leaves
# its sums exactly as they are: it multiplies them by 1 and adds 0. So the result does
# not depend on the blocks of other rows, the splits of the grid, or the row's index in
# its tile.

LENGTH, CHAIN_ROWS, POSITION = (
    tl.constexpr(i) for i in (launch.LENGTH, launch.CHAIN_ROWS, launch.POSITION)
)
RUN, FIRST, COUNT = (tl.constexpr(i) for i in (launch.RUN, launch.FIRST, launch.COUNT))
MOST, SPLIT = tl.constexpr(launch.MOST), tl.constexpr(launch.SPLIT)


@triton.jit
@no_type_check
def product(a, b, UPCAST: tl.constexpr):
    """Return a @ b, summed in float32."""
    if UPCAST:  # the interpreter cannot multiply bfloat16
        a, b = a.to(tl.float32), b.to(tl.float32)
    return tl.dot(a, b, input_precision="ieee")


@triton.jit
@no_type_check
def partial_sums(
    query,  # [rows, heads, dim], by its strides
    keys,  # [pool, kv_heads, dim]
    values,  # [pool, kv_heads, value_dim]
    sheet,  # [rows, width] int32
    sums,  # [rows, heads, splits, value_dim] float32, out
    peaks,  # [rows, heads, splits] float32, out: the largest score
    totals,  # [rows, heads, splits] float32, out: the sum of exp(score - peak)
    query_row,
    query_head,
    key_row,
    key_head,
    value_row,
    value_head,
    width,
    words,
    scale,
    cap,  # None where scores are not capped
    window,  # None = no window
    DIM: tl.constexpr,
    VALUE_DIM: tl.constexpr,
    WIDE: tl.constexpr,
    VALUE_WIDE: tl.constexpr,
    GROUP: tl.constexpr,
    TILE: tl.constexpr,
    KEYS: tl.constexpr,
    UPCAST: tl.constexpr,
):
    """Sum one split of the keys, for one tile of rows of one sequence and the query
    heads of one key head.
    """
    tile = tl.program_id(0)
    head = tl.program_id(1)
    split = tl.program_id(2)
    first = tl.load(sheet + tile * width + FIRST)
    count = tl.load(sheet + tile * width + COUNT)
    if count == 0:
        return
    member = tl.arange(0, TILE)
    real = member < count * GROUP
    row = first + member // GROUP
    line = sheet + row * width
    length = tl.load(line + LENGTH, mask=real, other=0)
    chain_rows = tl.load(line + CHAIN_ROWS, mask=real, other=0)
    stop = tl.max(length, 0)
    start = split * SPLIT
    if start >= stop:
        return
    stop = tl.minimum(stop, start + SPLIT)
    # before this key, no row needs its ancestor words
    tree = tl.min(tl.where(real, chain_rows, stop), 0)
    if window is not None:
        # the last position outside the window
        oldest = tl.load(line + POSITION, mask=real, other=2**31 - 1) - window
        start = tl.maximum(start, tl.min(oldest, 0) // KEYS * KEYS)
    run = tl.load(sheet + first * width + RUN).to(tl.int64)
    at_head = head * GROUP + member % GROUP
    dim, value_dim = tl.arange(0, WIDE), tl.arange(0, VALUE_WIDE)
    at_query = (
        query
        + row.to(tl.int64)[:, None] * query_row
        + at_head[:, None] * query_head
        + dim[None, :]
    )
    q = tl.load(at_query, mask=real[:, None] & (dim < DIM)[None, :], other=0.0)
    peak = tl.full([TILE], float("-inf"), tl.float32)
    total = tl.zeros([TILE], tl.float32)
    summed = tl.zeros([TILE, VALUE_WIDE], tl.float32)
    for block in range(start, stop, KEYS):
        key = block + tl.arange(0, KEYS)
        held = run + key
        at_key = keys + held[None, :] * key_row + head * key_head + dim[:, None]
        k = tl.load(
            at_key, mask=(key < stop)[None, :] & (dim < DIM)[:, None], other=0.0
        )
        at_value = (
            values + held[:, None] * value_row + head * value_head + value_dim[None, :]
        )
        v = tl.load(
            at_value,
            mask=(key < stop)[:, None] & (value_dim < VALUE_DIM)[None, :],
            other=0.0,
        )
        seen = key[None, :] < chain_rows[:, None]
        if window is not None:
            # before the tree, the position of a key is its index
            seen = seen & (key[None, :] > oldest[:, None])
        if block + KEYS > tree:
            node = key[None, :] - chain_rows[:, None]
            among = (node >= 0) & (key[None, :] < length[:, None]) & (node < MOST)
            word = tl.load(line[:, None] + words + node // 32, mask=among, other=0)
            seen = seen | (among & (((word >> (node & 31)) & 1) != 0))
        score = product(q, k, UPCAST) * scale
        if cap is not None:
            shrunk = tl.exp(-2 * tl.abs(score) / cap)
            # cap * tanh(score / cap)
            score = tl.where(score < 0, -cap, cap) * (1 - shrunk) / (1 + shrunk)
        score = tl.where(seen, score, float("-inf"))
        best = tl.maximum(peak, tl.max(score, 1))
        level = tl.where(best == float("-inf"), 0.0, best)
        weight = tl.exp(score - level[:, None])
        fade = tl.exp(peak - level)
        total = total * fade + tl.sum(weight, 1)
        summed = summed * fade[:, None] + product(weight.to(v.dtype), v, UPCAST)
        peak = best
    out = (row.to(tl.int64) * (tl.num_programs(1) * GROUP) + at_head) * tl.num_programs(
        2
    ) + split
    tl.store(peaks + out, peak, mask=real)
    tl.store(totals + out, total, mask=real)
    at_sum = sums + out[:, None] * VALUE_DIM + value_dim[None, :]
    tl.store(at_sum, summed, mask=real[:, None] & (value_dim < VALUE_DIM)[None, :])


@triton.jit
@no_type_check
def joined_sums(
    out,  # [rows, heads, value_dim]
    sums,
    peaks,
    totals,
    sheet,
    sinks,  # [heads]; None where there are none
    width,
    splits,
    VALUE_DIM: tl.constexpr,
    VALUE_WIDE: tl.constexpr,
):
    """Join the splits of a row and a head in order; a row without keys is zeros."""
    row, head = tl.program_id(0), tl.program_id(1)
    count = (tl.load(sheet + row * width + LENGTH) + SPLIT - 1) // SPLIT
    here = row.to(tl.int64) * tl.num_programs(1) + head
    best = tl.full([], float("-inf"), tl.float32)
    if sinks is not None:
        best = tl.load(sinks + head).to(tl.float32)
    for split in range(count):
        best = tl.maximum(best, tl.load(peaks + here * splits + split))
    level = tl.where(best == float("-inf"), 0.0, best)
    total = tl.zeros([], tl.float32)
    if sinks is not None:
        total += tl.exp(tl.load(sinks + head).to(tl.float32) - level)
    value_dim = tl.arange(0, VALUE_WIDE)
    summed = tl.zeros([VALUE_WIDE], tl.float32)
    for split in range(count):
        part = here * splits + split
        share = tl.exp(tl.load(peaks + part) - level)
        total += share * tl.load(totals + part)
        summed += share * tl.load(
            sums + part * VALUE_DIM + value_dim, mask=value_dim < VALUE_DIM, other=0.0
        )
    mean = summed / tl.where(total > 0, total, 1.0)
    at_out = out + here * VALUE_DIM + value_dim
    tl.store(at_out, mean.to(out.dtype.element_ty), mask=value_dim < VALUE_DIM)
