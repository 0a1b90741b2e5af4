"""Provides matrices as the blocks of a GGUF file: K-quants are rounded here, the older
types by the package gguf.

Layouts: ggml-org/llama.cpp, ggml/src/ggml-common.h; `foreword.model.quantized.gguf`
reads them. A K-quant has blocks of 256 inputs, a scale for each group of 16 or 32, and
numbers in 16 bits by which those are multiplied.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from importlib import import_module
from typing import Any

import torch
from jaxtyping import Float, Float32, Int, UInt8
from torch import Tensor

from foreword.model.quantized.gguf_writing.rounding import TINY, affine, symmetric

Whole = Float32[Tensor, "blocks groups inputs"]
Codes = UInt8[Tensor, "blocks codes"]
Blocks = UInt8[Tensor, "blocks bytes"]
Units = Float32[Tensor, "blocks 1"]
Factors = Float32[Tensor, "blocks groups"]

BLOCK = 256
"""Inputs of a block of a K-quant."""
SMALL, LARGE = 32, 16
"""Inputs of a group: of Q4_K and Q5_K, and of the other types."""
PART = 2**17
"""Weights rounded at a time: the candidates' numbers stay in the cache of a core."""
HALF = torch.finfo(torch.float16).max
"""Largest number in 16 bits."""


def blocks(
    weight: Float[Tensor, "outputs depth"], kind: str
) -> UInt8[Tensor, "outputs bytes"]:
    """Return a matrix in a type of KINDS, or another that the package gguf rounds."""
    if kind not in KINDS:
        gguf: Any = import_module("gguf")
        type_ = gguf.GGMLQuantizationType[kind]
        numbers = weight.float().numpy()
        data = gguf.quants.quantize(numbers, type_)
        return torch.from_numpy(data)
    rounded, group = KINDS[kind]
    parts = weight.reshape(-1, BLOCK).split(PART // BLOCK)
    groups = (part.float().unflatten(1, (-1, group)) for part in parts)
    data = torch.cat(list(map(rounded, groups)))
    return data.view(len(weight), -1)


def _packed(codes: Codes, width: int, run: int) -> Blocks:
    """Return codes of `width` bits as bytes: the lowest bits of each `run` bytes hold
    the first `run` codes, the next bits the next ones.
    """
    fields = codes.unflatten(-1, (-1, 8 // width, run))
    places = torch.arange(0, 8, width)[:, None]
    moved = fields.int() << places
    summed = moved.sum(-2).to(torch.uint8)
    return summed.flatten(-2)


def _half(numbers: Units) -> Blocks:
    """Return a float16 as two bytes."""
    return numbers.half().view(torch.uint8)


def _unit(scale: Factors, most: int) -> tuple[Units, Factors]:
    """Return the number of each block, as 16 bits hold it, and the factors in [0, most]
    that give the scales of its groups.
    """
    top = scale.amax(-1, keepdim=True) / most
    unit = top.clamp(max=HALF).half().float()
    factors = scale / unit.clamp(min=TINY)
    return unit, factors.round().clamp(0, most)


def _signed_unit(scale: Factors, half: int) -> tuple[Units, Factors]:
    """Return the number of each block, as 16 bits hold it, and the factors in
    [-half, half - 1] that give the scales of its groups.
    """
    place = scale.abs().argmax(-1, keepdim=True)
    top = scale.gather(-1, place) / -half
    unit = top.clamp(-HALF, HALF).half().float()
    factors = scale / _divisor(unit)
    return unit, factors.round().clamp(-half, half - 1)


def _divisor(scale: Tensor) -> Tensor:
    """Return scales to divide by: a scale of 0 gives 0."""
    return torch.where(scale == 0, torch.inf, scale)


def _nearest(
    weights: Whole, scale: Factors, low: int, high: int
) -> Int[Tensor, "blocks codes"]:
    """Return the nearest codes under the scales as stored."""
    divided = weights / _divisor(scale)[..., None]
    codes = divided.round().clamp(low, high)
    return codes.int().flatten(1)


@dataclass(frozen=True, slots=True)
class Rounded:
    """Blocks of weights, rounded: weight = unit * factor * code."""

    unit: Units
    factors: Int[Tensor, "blocks groups"]
    codes: Codes
    low_unit: Units
    """Of the lowest weights, which are subtracted; zeros for types without."""
    low_factors: Int[Tensor, "blocks groups"]


def _with_lowest(weights: Whole, bits: int, most: int) -> Rounded:
    """Round weights to a scale and a lowest weight for each group; `most`: the largest
    factor.
    """
    highest = 2**bits - 1
    shape = weights.shape[:2]
    flat = weights.flatten(0, 1)
    scale, low = affine(flat, highest)
    unit, factors = _unit(scale.view(shape), most)
    low_unit, lows = _unit(low.view(shape), most)
    raised = weights + (low_unit * lows)[..., None]
    codes = _nearest(raised, unit * factors, 0, highest)
    return Rounded(unit, factors.int(), codes.to(torch.uint8), low_unit, lows.int())


def _symmetric(weights: Whole, half: int, most: int) -> Rounded:
    """Round weights to a scale for each group; codes are raised by `half`, factors are
    in [-most, most - 1].
    """
    shape = weights.shape[:2]
    flat = weights.flatten(0, 1)
    scale = symmetric(flat, half).view(shape)
    unit, factors = _signed_unit(scale, most)
    scale = unit * factors
    codes = _nearest(weights, scale, -half, half - 1)
    return Rounded(
        unit,
        factors.int(),
        (codes + half).to(torch.uint8),
        torch.zeros_like(unit),
        torch.zeros_like(factors.int()),
    )


def _q2_k(weights: Whole) -> Blocks:
    found = _with_lowest(weights, 2, 15)
    both = found.factors | found.low_factors << 4
    return torch.cat(
        [
            both.to(torch.uint8),
            _packed(found.codes, 2, 32),
            _half(found.unit),
            _half(found.low_unit),
        ],
        -1,
    )


def _q3_k(weights: Whole) -> Blocks:
    found = _symmetric(weights, 4, 32)
    factors = (found.factors + 32).to(torch.uint8)
    return torch.cat(
        [
            _packed(found.codes >> 2, 1, 32),
            _packed(found.codes & 3, 2, 32),
            _packed(factors & 15, 4, 8),
            _packed(factors >> 4, 2, 4),
            _half(found.unit),
        ],
        -1,
    )


def _two_level(found: Rounded) -> Blocks:
    """Return the first 16 bytes of blocks: two float16, and eight scales and lowest
    weights of 6 bits.
    """
    scale, more = found.factors.split(4, dim=-1)
    low, low_more = found.low_factors.split(4, dim=-1)
    packed = [
        scale | more >> 4 << 6,
        low | low_more >> 4 << 6,
        more & 15 | (low_more & 15) << 4,
    ]
    return torch.cat(
        [
            _half(found.unit),
            _half(found.low_unit),
            torch.cat(packed, -1).to(torch.uint8),
        ],
        -1,
    )


def _q4_k(weights: Whole) -> Blocks:
    found = _with_lowest(weights, 4, 63)
    codes = _packed(found.codes, 4, 32)
    return torch.cat([_two_level(found), codes], -1)


def _q5_k(weights: Whole) -> Blocks:
    found = _with_lowest(weights, 5, 63)
    return torch.cat(
        [
            _two_level(found),
            _packed(found.codes >> 4, 1, 32),
            _packed(found.codes & 15, 4, 32),
        ],
        -1,
    )


def _q6_k(weights: Whole) -> Blocks:
    found = _symmetric(weights, 32, 128)
    factors = found.factors.to(torch.int8)
    return torch.cat(
        [
            _packed(found.codes & 15, 4, 64),
            _packed(found.codes >> 4, 2, 32),
            factors.view(torch.uint8),
            _half(found.unit),
        ],
        -1,
    )


KINDS: dict[str, tuple[Callable[[Tensor], Tensor], int]] = {
    "Q2_K": (_q2_k, LARGE),
    "Q3_K": (_q3_k, LARGE),
    "Q4_K": (_q4_k, SMALL),
    "Q5_K": (_q5_k, SMALL),
    "Q6_K": (_q6_k, LARGE),
}
"""The rounding of each K-quant, and the inputs of its groups."""
