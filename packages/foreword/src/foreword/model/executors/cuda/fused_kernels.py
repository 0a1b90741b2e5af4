"""Triton kernels for norms, rotary embeddings and products with quantized weights.

Imports Triton, so it is imported only where needed. A row's bits depend on its own
numbers only: norms and angles have a program for each row, and a product sums over the
inputs of a row in blocks of STEP from the first to the last.
"""

from typing import no_type_check

import triton
import triton.language as tl

from foreword.model.executors.cuda import quantized
from foreword.model.executors.cuda.kernels import product

ROWS, STEP = tl.constexpr(quantized.ROWS), tl.constexpr(quantized.STEP)


@triton.jit
@no_type_check
def rms_norm(
    x,  # [rows, dim]
    residual,  # [rows, dim], added to x; None = nothing
    weight,  # [dim]
    out,  # [rows, dim]
    summed,  # [rows, dim], out: x + residual
    eps,
    DIM: tl.constexpr,
    WIDE: tl.constexpr,
):
    """Normalize a row by its root mean square."""
    column = tl.arange(0, WIDE)
    real = column < DIM
    at = tl.program_id(0).to(tl.int64) * DIM + column
    row = tl.load(x + at, mask=real, other=0.0).to(tl.float32)
    if residual is not None:
        row += tl.load(residual + at, mask=real, other=0.0).to(tl.float32)
        row = row.to(summed.dtype.element_ty)
        tl.store(summed + at, row, mask=real)
        row = row.to(tl.float32)
    normed = row * tl.rsqrt(tl.sum(row * row, 0) / DIM + eps)
    normed = normed.to(out.dtype.element_ty).to(tl.float32)
    factor = tl.load(weight + column, mask=real, other=0.0).to(tl.float32)
    tl.store(out + at, (normed * factor).to(out.dtype.element_ty), mask=real)


@triton.jit
@no_type_check
def _turn(source, out, cos, sin, HALF: tl.constexpr, WIDE: tl.constexpr):
    """Turn one head of a row; products are rounded before they are added."""
    kind = out.dtype.element_ty
    low = tl.arange(0, WIDE)
    real = low < HALF
    first = tl.load(source + low, mask=real, other=0.0).to(tl.float32)
    second = tl.load(source + HALF + low, mask=real, other=0.0).to(tl.float32)
    c = tl.load(cos + low, mask=real, other=0.0).to(tl.float32)
    s = tl.load(sin + low, mask=real, other=0.0).to(tl.float32)
    turned = (first * c).to(kind).to(tl.float32) - (second * s).to(kind).to(tl.float32)
    tl.store(out + low, turned.to(kind), mask=real)
    c = tl.load(cos + HALF + low, mask=real, other=0.0).to(tl.float32)
    s = tl.load(sin + HALF + low, mask=real, other=0.0).to(tl.float32)
    turned = (second * c).to(kind).to(tl.float32) + (first * s).to(kind).to(tl.float32)
    tl.store(out + HALF + low, turned.to(kind), mask=real)


@triton.jit
@no_type_check
def rotate(
    query,  # [rows, heads, dim], by its strides
    key,  # [rows, kv_heads, dim], by its strides
    cos,  # [rows, dim]
    sin,  # [rows, dim]
    out_query,  # [rows, heads, dim]
    out_key,  # [rows, kv_heads, dim]
    query_row,
    query_head,
    key_row,
    key_head,
    heads,
    kv_heads,
    HALF: tl.constexpr,
    WIDE: tl.constexpr,
):
    """Turn one head of query or key, for one row."""
    row, head = tl.program_id(0).to(tl.int64), tl.program_id(1)
    cos += row * 2 * HALF
    sin += row * 2 * HALF
    if head < heads:
        source = query + row * query_row + head * query_head
        out = out_query + (row * heads + head) * 2 * HALF
        _turn(source, out, cos, sin, HALF, WIDE)
    else:
        source = key + row * key_row + (head - heads) * key_head
        out = out_key + (row * kv_heads + head - heads) * 2 * HALF
        _turn(source, out, cos, sin, HALF, WIDE)


@triton.jit
@no_type_check
def _by_codes(x, codes, UPCAST: tl.constexpr):
    # the interpreter has no bfloat16 of whole numbers
    weight = codes.to(tl.float32) if UPCAST else codes.to(x.dtype)
    return product(x, weight, UPCAST)


@triton.jit
@no_type_check
def weight_only(
    x,  # [rows, depth]
    codes,  # [outputs, depth] int8, or [outputs, depth / 2] uint8 with 4 bits
    scales,  # [outputs, groups]
    bias,  # [outputs]; None where there is none
    out,  # [rows, outputs]
    rows,
    outputs,
    depth,
    group,
    BITS: tl.constexpr,
    OUTPUTS: tl.constexpr,
    UPCAST: tl.constexpr,
):
    """Multiply ROWS rows by OUTPUTS outputs."""
    row = tl.program_id(1) * ROWS + tl.arange(0, ROWS)
    output = tl.program_id(0) * OUTPUTS + tl.arange(0, OUTPUTS)
    real, stored = row < rows, output < outputs
    x += row.to(tl.int64)[:, None] * depth
    line = output.to(tl.int64)
    total = tl.zeros([ROWS, OUTPUTS], tl.float32)
    half = tl.arange(0, STEP // 2)
    for first in range(0, depth, STEP):
        at = x + first + half[None, :]
        left = tl.load(at, mask=real[:, None], other=0.0)
        right = tl.load(at + STEP // 2, mask=real[:, None], other=0.0)
        if BITS == 4:
            at = codes + line[None, :] * (depth // 2) + first // 2 + half[:, None]
            octet = tl.load(at, mask=stored[None, :], other=0).to(tl.int32)
            low = (octet & 15) - 8
            high = (octet >> 4) - 8
        else:
            at = codes + line[None, :] * depth + first + half[:, None]
            low = tl.load(at, mask=stored[None, :], other=0)
            high = tl.load(at + STEP // 2, mask=stored[None, :], other=0)
        part = _by_codes(left, low, UPCAST) + _by_codes(right, high, UPCAST)
        at = scales + line * (depth // group) + first // group
        scale = tl.load(at, mask=stored, other=0.0).to(tl.float32)
        total += part * scale[None, :]
    if bias is not None:
        added = tl.load(bias + output, mask=stored, other=0.0).to(tl.float32)
        total += added[None, :]
    at = out + row.to(tl.int64)[:, None] * outputs + output[None, :]
    inside = real[:, None] & stored[None, :]
    tl.store(at, total.to(out.dtype.element_ty), mask=inside)
