"""Reader of compressed-tensors: integers of 4 or 8 bits, packed (pack-quantized) or as
int8, and floating-point numbers of 4 or 8 bits.

Activations are not quantized, whatever the checkpoint says of them: its weights are the
model.
"""

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from foreword.model.quantized.coded import Coded
from foreword.model.quantized.formats.floats import (
    E4M3,
    Block,
    numbers,
    read_fp4,
    read_fp8,
)
from foreword.model.quantized.layer import (
    KV_SCALES,
    Format,
    Layer,
    affine,
    signed,
    unpack,
)


def read(layer: Layer) -> Coded | Tensor:
    """Return a matrix."""
    packed = layer.tensors.get(".weight_packed")
    if packed is not None and packed.dtype == torch.uint8:
        return _read_fp4(layer)
    weight = layer.tensors.get(".weight")
    if weight is not None and weight.dtype == E4M3:
        return _read_fp8(layer)
    return _read_whole(layer)


def _read_fp4(layer: Layer) -> Coded:
    """Return a matrix of nvfp4-pack-quantized, whose scales are divided by a number, or
    of mxfp4-pack-quantized.
    """
    if ".weight_global_scale" not in layer.tensors:
        powers = layer.take(".weight_scale", torch.uint8, None, None)
        return read_fp4(layer, ".weight_packed", numbers(powers))
    whole = layer.take(".weight_global_scale", torch.float32, 1)
    stored = layer.take(".weight_scale", E4M3, None, None)
    return read_fp4(layer, ".weight_packed", numbers(stored) / whole)


def _read_fp8(layer: Layer) -> Coded | Tensor:
    """Return a matrix of float-quantized, naive-quantized or mxfp8-quantized."""
    zeros = layer.tensors.get(".weight_zero_point")
    if zeros is not None and zeros.float().any():
        raise layer.error(".weight_zero_point", "is not zero beside FP8 numbers")
    return read_fp8(layer, ".weight", ".weight_scale", _blocks(layer.settings))


def _blocks(settings: Mapping[str, Any]) -> list[Block]:
    """Return the sizes of all schemes: a matrix does not name its scheme."""
    blocks: list[Block] = []
    for group in (settings.get("config_groups") or {}).values():
        scheme = group.get("weights") or {}
        if scheme.get("block_structure"):
            high, wide = scheme["block_structure"]
            blocks.append((high, wide))
        if scheme.get("group_size"):
            blocks.append((1, scheme["group_size"]))
    return blocks


def _read_whole(layer: Layer) -> Coded | Tensor:
    """Return a matrix of whole numbers, with scales for groups, outputs, or all."""
    zeros = layer.tensors.get(".weight_zero_point")
    index = layer.tensors.get(".weight_g_idx")
    if ".weight" in layer.tensors:
        bits, codes = 8, signed(layer.take(".weight", torch.int8, None, None))
    else:
        words = layer.take(".weight_packed", torch.int32, None, None)
        outputs, depth = layer.take(".weight_shape", None, 2).tolist()
        bits = words.shape[1] * 32 // depth
        if bits not in (4, 8) or len(words) != outputs:
            raise layer.error(
                ".weight_packed",
                f"has {bits} bits a weight and {len(words)} outputs, and only 4 and 8 "
                f"bits of {outputs} outputs are read",
            )
        codes = unpack(words, bits)[:, :depth]
        if zeros is not None and zeros.dtype == torch.int32:  # packed along the outputs
            zeros = unpack(zeros.T, bits)[:, :outputs].T.to(torch.int32) - (
                1 << (bits - 1)
            )
    if index is not None and bool((index < 0).any()):  # not used
        index = None
    scale = _by_output(
        layer, ".weight_scale", len(codes), layer.take(".weight_scale", None)
    )
    if zeros is not None:
        zeros = _by_output(layer, ".weight_zero_point", len(codes), zeros).to(
            torch.int32
        )
        if zeros.shape != scale.shape:
            raise layer.error(
                ".weight_zero_point",
                f"is for {zeros.shape[1]} groups, not {scale.shape[1]}",
            )
    return affine(layer, codes, bits, scale, zeros, index)


def refused(settings: Mapping[str, Any]) -> str:
    """Return the rotations of activations, which the weights alone do not show."""
    return "transform_config" if settings.get("transform_config") else ""


def _by_output(layer: Layer, ending: str, outputs: int, numbers: Tensor) -> Tensor:
    """Return numbers for each output and group, whatever they were for."""
    if numbers.numel() == 1:
        return numbers.reshape(1, 1).expand(outputs, 1)
    if len(numbers) != outputs:
        raise layer.error(
            ending, f"has the shape {list(numbers.shape)}, not [{outputs}, any]"
        )
    return numbers.reshape(outputs, -1)


FORMAT = Format(
    (
        ".weight_packed",
        ".weight_scale",
        ".weight_zero_point",
        ".weight_shape",
        ".weight_g_idx",
        ".weight_global_scale",
        ".input_scale",
        ".input_zero_point",
        ".input_global_scale",
    ),
    read,
    codes=".weight",
    unused=(*KV_SCALES, ".k_zero_point", ".v_zero_point"),
    refused=refused,
)
