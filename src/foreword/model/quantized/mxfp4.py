"""Provides the reader of MXFP4, the experts of gpt-oss: FP4 numbers, and a power of two
for every 32 of them.
"""

from __future__ import annotations

import torch
from jaxtyping import Float, UInt8
from torch import Tensor

from foreword.model.quantized.coded import Coded, Scales
from foreword.model.quantized.layer import Format, Layer

BLOCK = 32
"""Inputs that share a scale."""
HALVES = (0, 1, 2, 3, 4, 6, 8, 12)
"""Twice the numbers of FP4 (one sign, two exponent and one mantissa bit); the other
eight are negative.
"""


def coded(
    blocks: UInt8[Tensor, "outputs groups bytes"],
    scales: UInt8[Tensor, "outputs groups"],
) -> Coded:
    """Return the matrix of one expert, exactly: levels are twice the numbers, scales
    half the powers of two.
    """
    codes = torch.stack([blocks & 15, blocks >> 4], dim=-1).flatten(1)
    levels = torch.tensor([*HALVES, *(-level for level in HALVES)], dtype=torch.int8)
    scale = torch.ldexp(
        torch.ones(scales.shape, dtype=torch.float32), scales.int() - 128
    )
    return Coded(codes, levels, Scales(scale), None, BLOCK)


def read(layer: Layer) -> Coded:
    """Return the matrices of all experts, one after another."""
    blocks = layer.take("_blocks", torch.uint8, None, None, None, BLOCK // 2)
    scales = layer.take("_scales", torch.uint8, *blocks.shape[:3])
    return coded(blocks.flatten(0, 1), scales.flatten(0, 1))


def shaped(
    layer: Layer, weight: Float[Tensor, "outputs depth"]
) -> Float[Tensor, "experts depth each"]:
    """Return the weights of all experts as the model holds them."""
    return (
        weight.unflatten(0, (len(layer.tensors["_blocks"]), -1))
        .transpose(1, 2)
        .contiguous()
    )


FORMAT = Format(("_blocks", "_scales"), read, weight="", shaped=shaped)
