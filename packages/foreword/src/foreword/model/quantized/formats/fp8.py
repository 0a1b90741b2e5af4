"""Reader of FP8 as DeepSeek-V3 publishes it: E4M3 numbers, and a scale that multiplies
each block of a matrix.

Activations are not quantized, whatever the checkpoint says of them: its weights are the
model. 8-bit integers cannot hold the ratios of E4M3 numbers, so the backends for CPUs
dequantize them. Source: DeepSeek-V3 (arXiv 2412.19437), section 3.3.2, and
transformers' integrations/finegrained_fp8.py for the names.
"""

from collections.abc import Mapping
from typing import Any

from torch import Tensor

from foreword.model.quantized.coded import Coded
from foreword.model.quantized.formats.floats import Block, read_fp8
from foreword.model.quantized.layer import KV_SCALES, Format, Layer

BLOCK = (128, 128)
"""Outputs and inputs of a block where the settings name none."""


def read(layer: Layer) -> Coded | Tensor:
    """Return a matrix, or the weights of all experts in one tensor."""
    scale = "_scale_inv" if "_scale_inv" in layer.tensors else "_scale"
    return read_fp8(layer, "", scale, _blocks(layer.settings))


def refused(settings: Mapping[str, Any]) -> str:
    """Return the size of blocks, where it is none."""
    size = settings.get("weight_block_size", BLOCK)
    if size is None:
        return ""
    pair = isinstance(size, list | tuple) and len(size) == len(BLOCK)
    valid = pair and all(type(one) is int and one > 0 for one in size)
    return "" if valid else f"weight_block_size={size!r}"


def _blocks(settings: Mapping[str, Any]) -> list[Block]:
    size = settings.get("weight_block_size", BLOCK)
    return [] if size is None else [(size[0], size[1])]


FORMAT = Format(
    ("_scale_inv", "_scale"),
    read,
    codes="",
    weight="",
    unused=("activation_scale", ".input_scale", *KV_SCALES),
    refused=refused,
)
