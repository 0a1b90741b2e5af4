"""Reader of NVIDIA ModelOpt's checkpoints: FP4 numbers with two levels of scales
(NVFP4), or FP8 numbers with one.

Activations are not quantized, whatever the checkpoint says of them. Source:
modelopt/torch/quantization/qtensor of nvidia-modelopt 0.47.0.
"""

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from foreword.model.quantized.coded import Coded
from foreword.model.quantized.formats.floats import E4M3, numbers, read_fp4, read_fp8
from foreword.model.quantized.layer import KV_SCALES, Format, Layer, named

METHOD = "modelopt"
SMOOTHING = ".pre_quant_scale"
"""Ending of a tensor that multiplies activations (AWQ, SmoothQuant)."""
KINDS = (
    "FP8",
    "FP8_PER_CHANNEL_PER_TOKEN",
    "FP8_PB_WO",
    "MIXED_PRECISION",
    "MXFP8",
    "NVFP4",
    "NVFP4_AWQ",
    "W4A16_NVFP4",
)
"""Values of `quant_algo` whose tensors are read."""


def read(layer: Layer) -> Coded | Tensor:
    """Return a matrix of FP4 or FP8 numbers."""
    if SMOOTHING in layer.tensors:
        raise layer.error(SMOOTHING, "scales activations, which is not supported")
    weight = layer.take(".weight", None)
    if weight.dtype == E4M3:
        return read_fp8(layer, ".weight", ".weight_scale", [])
    if weight.dtype != torch.uint8:
        raise layer.error(
            ".weight",
            f"holds {named(weight.dtype)}, and only uint8 (FP4) and {named(E4M3)} are "
            "read",
        )
    factor = layer.take(".weight_scale_2", torch.float32)
    if factor.numel() != 1:
        raise layer.error(
            ".weight_scale_2", f"has the shape {list(factor.shape)}, not one number"
        )
    stored = layer.take(".weight_scale", E4M3, None, None)
    return read_fp4(layer, ".weight", numbers(stored) * factor.reshape(()))


def refused(settings: Mapping[str, Any]) -> str:
    """Return the algorithm, where its tensors are not read."""
    kind = settings.get("quant_algo")
    return "" if str(kind).upper() in KINDS else f"quant_algo={kind!r}"


def settings(content: Mapping[str, Any]) -> dict[str, Any] | None:
    """Return the content of the settings file as a quantization_config; None where it
    says nothing of weights.
    """
    values = content.get("quantization")
    if not isinstance(values, dict) or not values.get("quant_algo"):
        return None
    return {"quant_method": METHOD, **values}


FORMAT = Format(
    (".weight_scale", ".weight_scale_2", SMOOTHING),
    read,
    codes=".weight",
    unused=(".input_scale", *KV_SCALES),
    refused=refused,
)
