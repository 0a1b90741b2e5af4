"""Triton kernels for norms, rotary embeddings and products with quantized weights.

Imports Triton, so it is imported only where needed. A row's bits depend on its own
numbers only: norms and angles have a program for each row, and a product sums over the
inputs of a row in blocks of one size from the first to the last.
"""

from typing import no_type_check

import triton
import triton.language as tl

from foreword.model.executors.cuda import quantized
from foreword.model.executors.cuda.kernels import product

ROWS = tl.constexpr(quantized.ROWS)


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
def _numbers(values, factors, span, group, groups, lines):
    """Return a number for each output: `span` groups share a value."""
    line, stored = lines
    at = values + line * (groups // span) + group // span
    number = tl.load(at, mask=stored, other=0.0).to(tl.float32)
    if factors is not None:
        at = factors + line * groups + group
        number *= tl.load(at, mask=stored, other=0).to(tl.float32)
    return number[None, :]


@triton.jit
@no_type_check
def _weighed(left, right, values, factors, span, places, lines, APART: tl.constexpr):
    """Return the sum of two halves, each times the numbers of its group."""
    group, other, groups = places
    number = _numbers(values, factors, span, group, groups, lines)
    if APART:
        right *= _numbers(values, factors, span, other, groups, lines)
        return left * number + right
    return (left + right) * number


@triton.jit
@no_type_check
def _e4m3(byte):
    """Return the float16 of bytes in E4M3, exactly: exponents in float16 have 8 added.

    NaN would be 480, and does not occur: loading refuses a layer that holds it.
    """
    bits = byte.to(tl.uint16)
    bits = (bits & 128) << 8 | (bits & 127) << 7
    return bits.to(tl.float16, bitcast=True) * 256.0


@triton.jit
@no_type_check
def _levels(
    codes, levels, stored, BITS: tl.constexpr, LOW: tl.constexpr, HALF: tl.constexpr
):
    """Return the numbers of two halves, from the address of the first."""
    low = tl.load(codes, mask=stored[None, :], other=0)
    if BITS == 4:
        high = (low >> 4).to(tl.int32) + LOW
        low = (low & 15).to(tl.int32) + LOW
        if levels is not None:
            low = tl.load(levels + low)
            high = tl.load(levels + high)
    else:
        high = tl.load(codes + HALF, mask=stored[None, :], other=0)
        if low.dtype == tl.uint8:
            low, high = _e4m3(low), _e4m3(high)
    return low, high


@triton.jit
@no_type_check
def weight_only(
    x,  # [rows, depth]
    codes,  # [outputs, depth] int8, or uint8 of E4M3; [outputs, depth / 2] of 4 bits
    levels,  # [16] int8, of codes of 4 bits; None where these are code + LOW
    scales,  # [outputs, groups / scale_span]
    scale_factors,  # [outputs, groups] int8; None where all are 1
    offsets,  # [outputs, groups / offset_span]; None where there are none
    offset_factors,  # [outputs, groups] int8; None where all are 1
    bias,  # [outputs]; None where there is none
    out,  # [rows, outputs]
    rows,
    outputs,
    depth,
    size,  # inputs of a group
    scale_span,
    offset_span,
    BITS: tl.constexpr,
    LOW: tl.constexpr,
    HALF: tl.constexpr,
    APART: tl.constexpr,  # the halves of a step may lie in two groups
    OUTPUTS: tl.constexpr,
    UPCAST: tl.constexpr,
):
    """Multiply ROWS rows by OUTPUTS outputs, in steps of two halves.

    The dtype of rows holds levels exactly; a scale multiplies the float32 sum of a step
    within a group, so a weight is not rounded to this dtype.
    """
    row = (tl.program_id(1) * ROWS + tl.arange(0, ROWS)).to(tl.int64)
    output = (tl.program_id(0) * OUTPUTS + tl.arange(0, OUTPUTS)).to(tl.int64)
    real, stored = row < rows, output < outputs
    total = tl.zeros([ROWS, OUTPUTS], tl.float32)
    half, lines = tl.arange(0, HALF), (output, stored)
    for first in range(0, depth, 2 * HALF):
        at = x + row[:, None] * depth + first + half[None, :]
        left = tl.load(at, mask=real[:, None], other=0.0)
        right = tl.load(at + HALF, mask=real[:, None], other=0.0)
        at = codes + output[None, :] * (depth * BITS // 8) + first * BITS // 8
        low, high = _levels(at + half[:, None], levels, stored, BITS, LOW, HALF)
        low = _by_codes(left, low, UPCAST)
        high = _by_codes(right, high, UPCAST)
        places = first // size, (first + HALF) // size, depth // size
        total += _weighed(
            low, high, scales, scale_factors, scale_span, places, lines, APART
        )
        if offsets is not None:
            low = tl.sum(left.to(tl.float32), 1)[:, None]
            high = tl.sum(right.to(tl.float32), 1)[:, None]
            total += _weighed(
                low, high, offsets, offset_factors, offset_span, places, lines, APART
            )
    if bias is not None:
        total += tl.load(bias + output, mask=stored, other=0.0).to(tl.float32)[None, :]
    at = out + row[:, None] * outputs + output[None, :]
    tl.store(at, total.to(out.dtype.element_ty), mask=real[:, None] & stored[None, :])
