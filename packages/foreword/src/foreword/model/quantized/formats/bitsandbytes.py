"""Readers of bitsandbytes: NF4, FP4 (16 numbers, a largest value a block), 8 bits."""

import json
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Float, Float32, UInt8
from torch import Tensor

from foreword.model.quantized.coded import Coded, Scales
from foreword.model.quantized.layer import STEP, Format, Layer, affine, signed

STATE = ".weight.quant_state.bitsandbytes__"
WHOLE = {"nf4": 112, "fp4": 120}
"""Largest level of each table, such that whole numbers are nearest to the table: off by
0.17 % and 0.11 % of it.
"""
MOST_BLOCK = 512
"""Weights.

In larger blocks, whole levels round a product more than activations in 8 bits do
(test_bitsandbytes.py).
"""


@dataclass(frozen=True, slots=True)
class _Packed:
    """A matrix of 4 bits as the library stores it."""

    codes: UInt8[Tensor, "weights"]
    shape: tuple[int, int]
    kind: str
    table: Float32[Tensor, "codes"]
    largest: Float32[Tensor, "blocks"]
    block: int
    """Consecutive weights that share a largest value, even across outputs."""


def read(layer: Layer) -> Coded | Tensor:
    """Return a matrix of 8 bits, or one of 4 whose table is rounded to whole numbers;
    exact weights in large blocks.
    """
    if _in_8bit(layer):
        return _read_8bit(layer)
    packed = _packed(layer)
    if (
        packed.shape[1] % packed.block
        or packed.block % STEP
        or packed.block > MOST_BLOCK
    ):
        return _weights(packed)
    levels = (packed.table * WHOLE[packed.kind]).round().to(torch.int8)
    scale = packed.largest.view(packed.shape[0], -1) / WHOLE[packed.kind]
    return Coded(
        packed.codes.view(packed.shape), levels, Scales(scale), None, packed.block
    )


def exact(layer: Layer) -> Float32[Tensor, "outputs depth"]:
    """Return the weights as the library dequantizes them, bit for bit, where no code is
    multiplied.
    """
    if not _in_8bit(layer):
        return _weights(_packed(layer))
    matrix = _read_8bit(layer)
    return matrix.dense() if isinstance(matrix, Coded) else matrix


def _packed(layer: Layer) -> _Packed:
    kind = next((kind for kind in WHOLE if STATE + kind in layer.tensors), "nf4")
    state = json.loads(bytes(layer.take(STATE + kind, torch.uint8, None).tolist()))
    (outputs, depth), block = state["shape"], state["blocksize"]
    packed = (
        layer.take(".weight", None, None, None).contiguous().view(torch.uint8).flatten()
    )
    table = layer.take(".weight.quant_map", torch.float32, 16)
    largest = _largest(layer, state, -(-outputs * depth // block))
    if len(packed) * 2 < outputs * depth:
        raise layer.error(
            ".weight", f"holds {len(packed) * 2} codes, not {outputs * depth}"
        )
    codes = torch.stack([packed >> 4, packed & 15], dim=1).flatten()[: outputs * depth]
    return _Packed(codes, (outputs, depth), kind, table, largest, block)


def _weights(packed: _Packed) -> Float32[Tensor, "outputs depth"]:
    weight = packed.table[packed.codes.int()]
    weight *= packed.largest.repeat_interleave(packed.block)[: len(weight)]
    return weight.view(packed.shape)


def _largest(
    layer: Layer, state: dict[str, Any], blocks: int
) -> Float[Tensor, "blocks"]:
    """Return the largest value of each block, which may be quantized too."""
    if "nested_blocksize" not in state:
        return layer.take(".weight.absmax", torch.float32, blocks)
    codes = layer.take(".weight.absmax", torch.uint8, blocks).long()
    table = layer.take(".weight.nested_quant_map", torch.float32, 256)
    outer = layer.take(
        ".weight.nested_absmax", torch.float32, -(-blocks // state["nested_blocksize"])
    )
    return (
        table[codes] * outer.repeat_interleave(state["nested_blocksize"])[:blocks]
        + state["nested_offset"]
    )


def _in_8bit(layer: Layer) -> bool:
    return ".SCB" in layer.tensors or ".weight_format" in layer.tensors


def _read_8bit(layer: Layer) -> Coded | Tensor:
    weight = layer.take(".weight", torch.int8, None, None)
    if int(layer.tensors.get(".weight_format", torch.tensor(0))):
        raise layer.error(
            ".weight_format", "says that the rows are packed for a kernel"
        )
    return affine(
        layer,
        signed(weight),
        8,
        layer.take(".SCB", torch.float32, len(weight))[:, None] / 127,
    )


FORMAT = Format(
    (
        ".weight.absmax",
        ".weight.quant_map",
        ".weight.nested_absmax",
        ".weight.nested_quant_map",
        STATE + "nf4",
        STATE + "fp4",
        ".SCB",
        ".weight_format",
    ),
    read,
    codes=".weight",
    exact=exact,
)
