"""Provides the readers of bitsandbytes: tables of 16 numbers (NF4, FP4) and a largest value a block, or 8 bits."""

from __future__ import annotations

import json
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from foreword.model.quantized.coded import Coded, Scales
from foreword.model.quantized.layer import STEP, Format, Layer, affine, signed

STATE = ".weight.quant_state.bitsandbytes__"
WHOLE = {"nf4": 127, "fp4": 96}
"""Largest level of each table."""


def read(layer: Layer) -> Coded | Tensor:
    """Return a matrix of 4 bits or of 8."""
    if ".SCB" in layer.tensors or ".weight_format" in layer.tensors:
        return _read_8bit(layer)
    kind = next((kind for kind in WHOLE if STATE + kind in layer.tensors), "nf4")
    state = json.loads(bytes(layer.take(STATE + kind, torch.uint8, None).tolist()))
    (outputs, depth), block = state["shape"], state["blocksize"]
    packed = layer.take(".weight", None, None, None).contiguous().view(torch.uint8).flatten()
    table = layer.take(".weight.quant_map", torch.float32, 16)
    largest = _largest(layer, state, -(-outputs * depth // block))
    if len(packed) * 2 < outputs * depth:
        raise layer.error(".weight", f"holds {len(packed) * 2} codes, not {outputs * depth}")
    codes = torch.stack([packed >> 4, packed & 15], dim=1).flatten()[: outputs * depth]
    if depth % block or block % STEP:  # blocks run over the ends of outputs
        weight = table[codes.long()] * largest.repeat_interleave(block)[: len(codes)]
        return weight.view(outputs, depth)
    return _coded(codes.view(outputs, depth), table, largest.view(outputs, -1), WHOLE[kind])


def _coded(codes: Tensor, table: Tensor, largest: Tensor, whole: int) -> Coded:
    """Return the matrix with its table rounded to whole numbers.

    A weight differs from the format's own by at most half a step, largest / (2 * whole): 0.4 % of the largest weight
    of its block in NF4. FP4 is exact but for its two smallest numbers, which differ by 0.5 %.
    """
    levels = (table * whole).round().to(torch.int8)
    return Coded(codes, levels, Scales(largest / whole), None, codes.shape[1] // largest.shape[1])


def _largest(layer: Layer, state: dict[str, Any], blocks: int) -> Float[Tensor, "blocks"]:
    """Return the largest value of each block, which may be quantized too (double quantization)."""
    if "nested_blocksize" not in state:
        return layer.take(".weight.absmax", torch.float32, blocks)
    codes = layer.take(".weight.absmax", torch.uint8, blocks).long()
    table = layer.take(".weight.nested_quant_map", torch.float32, 256)
    outer = layer.take(".weight.nested_absmax", torch.float32, -(-blocks // state["nested_blocksize"]))
    return table[codes] * outer.repeat_interleave(state["nested_blocksize"])[:blocks] + state["nested_offset"]


def _read_8bit(layer: Layer) -> Coded | Tensor:
    weight = layer.take(".weight", torch.int8, None, None)
    if int(layer.tensors.get(".weight_format", torch.tensor(0))):
        raise layer.error(".weight_format", "says that the rows are packed for a kernel")
    return affine(layer, signed(weight), 8, layer.take(".SCB", torch.float32, len(weight))[:, None] / 127)


FORMAT = Format(
    (
        *(".weight.absmax", ".weight.quant_map", ".weight.nested_absmax", ".weight.nested_quant_map"),
        *(STATE + "nf4", STATE + "fp4", ".SCB", ".weight_format"),
    ),
    read,
    codes=".weight",
)
