"""Reader of MXFP4, the form of gpt-oss's experts: FP4 numbers, and a power of two for
every 32 of them.
"""

import torch
from jaxtyping import Float, UInt8
from torch import Tensor

from foreword.model.quantized.coded import Coded
from foreword.model.quantized.formats.floats import fp4
from foreword.model.quantized.layer import Format, Layer

BLOCK = 32
"""Inputs that share a scale."""


def coded(
    blocks: UInt8[Tensor, "outputs groups bytes"],
    scales: UInt8[Tensor, "outputs groups"],
) -> Coded:
    """Return the matrix of one expert, exactly."""
    ones = torch.ones(scales.shape, dtype=torch.float32)
    return fp4(blocks.flatten(1), torch.ldexp(ones, scales.int() - 127))


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
