"""Matrices of floating-point numbers of 8 and 4 bits, E4M3 and E2M1, which several
quantization methods store with different scales.
"""

import math

import torch
from jaxtyping import Float, Float32, UInt8
from torch import Tensor

from foreword.model.quantized.coded import Coded, Scales
from foreword.model.quantized.layer import STEP, Layer

E4M3 = torch.float8_e4m3fn
"""FP8: one sign, four exponent and three mantissa bits; no infinity."""
HALVES = (0, 1, 2, 3, 4, 6, 8, 12)
"""Twice the numbers of E2M1 (one sign, two exponent and one mantissa bit); the other
eight are negative.
"""
LEVELS = torch.arange(256, dtype=torch.uint8).view(E4M3)
"""Number of each byte."""
Block = tuple[int, int]
"""Outputs and inputs that share a scale."""


def numbers(scale: Tensor) -> Float32[Tensor, "..."]:
    """Return scales in float32; bytes are exponents of two (E8M0), 127 added."""
    whole = scale.dtype == torch.uint8
    return (scale.view(torch.float8_e8m0fnu) if whole else scale).float()


def fp4(
    packed: UInt8[Tensor, "outputs bytes"],
    scale: Float32[Tensor, "outputs groups"],
) -> Coded:
    """Return a matrix of E2M1 numbers, two to a byte, the low half first.

    Exact: levels are twice the numbers, scales half of those given.
    """
    halves = [packed & 15, packed >> 4]
    codes = torch.stack(halves, dim=-1).flatten(1)
    positive = torch.tensor(HALVES, dtype=torch.int8)
    levels = torch.cat([positive, -positive])
    half = Scales((scale / 2).contiguous())
    group = codes.shape[1] // scale.shape[1]
    return Coded(codes, levels, half, None, group)


def read_fp4(
    layer: Layer,
    codes: str,
    scale: Float32[Tensor, "outputs groups"],
) -> Coded:
    """Return a matrix of E2M1 numbers with a scale for each run of inputs; `codes` is
    the ending of the tensor.
    """
    outputs, groups = scale.shape
    packed = layer.take(codes, torch.uint8, outputs, None)
    depth = 2 * packed.shape[1]
    if not groups or depth % (STEP * groups):
        raise layer.error(
            codes,
            f"holds {depth} inputs, and its {groups} groups are no multiples of {STEP}",
        )
    return fp4(packed, scale)


def read_fp8(
    layer: Layer, codes: str, scale: str, blocks: list[Block]
) -> Coded | Float32[Tensor, "... outputs depth"]:
    """Return a matrix of E4M3 numbers; the weights of all experts in one tensor, and of
    blocks of other inputs than multiples of STEP.

    `codes`, `scale`: endings of the tensors. There is a scale for everything, for each
    output, or for each block. Blocks have one of the sizes `blocks`, and the last may
    be cut off; if none is given, any size that divides the matrix.
    """
    stored = layer.take(codes, E4M3)
    if stored.dim() < 2:
        raise layer.error(codes, f"has the shape {list(stored.shape)}, not a matrix's")
    scales = _table(numbers(layer.take(scale, None)), stored.shape)
    block = _block(stored.shape, scales.shape, blocks)
    if block is None:
        sizes = " or ".join(f"{high} x {wide}" for high, wide in blocks) or "any size"
        raise layer.error(
            scale,
            f"has the shape {list(scales.shape)}, which is not that of the blocks "
            f"({sizes}) of {list(stored.shape)} weights",
        )
    high, wide = block
    outputs, depth = stored.shape[-2:]
    tall = scales.repeat_interleave(high, dim=-2)[..., :outputs, :]
    group = math.gcd(min(wide, depth), depth)  # the last block may be cut off
    if stored.dim() == 2 and group % STEP == 0:
        column = torch.arange(0, depth, group) // wide
        held = Scales(tall[:, column])
        octets = stored.view(torch.uint8)
        return Coded(octets, LEVELS, held, None, group)
    weight = stored.float()
    for column, part in enumerate(weight.split(wide, dim=-1)):
        part.mul_(tall[..., column : column + 1])
    return weight


def _table(scales: Tensor, shape: torch.Size) -> Float[Tensor, "... rows columns"]:
    """Return scales with the dimensions of the matrix; one is for everything, and a
    vector has one for each output, or expert.
    """
    if scales.numel() == 1:
        return scales.reshape(()).expand(*shape[:-2], 1, 1)
    if scales.dim() == 1:
        return scales.reshape(-1, *[1] * (len(shape) - 1))
    if scales.dim() == 2 * len(shape):  # [rows, 1, columns, 1]
        return scales.reshape(scales.shape[::2])
    return scales


def _block(shape: torch.Size, scales: torch.Size, blocks: list[Block]) -> Block | None:
    """Return the size of the blocks that scales of a shape are for; None = they fit
    no matrix of this shape.
    """
    if scales[:-2] != shape[:-2] or len(scales) < 2 or 0 in scales:
        return None
    rows, columns = scales[-2:]
    outputs, depth = shape[-2:]
    for high, wide in blocks:
        if (rows, columns) == (math.ceil(outputs / high), math.ceil(depth / wide)):
            return high, wide
    whole = not outputs % rows and not depth % columns
    if whole and (not blocks or (rows in (1, outputs) and columns == 1)):
        return outputs // rows, depth // columns
    return None
