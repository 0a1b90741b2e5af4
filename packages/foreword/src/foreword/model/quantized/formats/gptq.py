"""Reader of GPTQ: codes of 2, 3, 4 or 8 bits packed along the inputs, a scale and a
zero point a group.
"""

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from foreword.model.quantized.coded import Coded
from foreword.model.quantized.layer import WORD, Format, Layer, affine, unpack

SECOND = "gptq_v2"
"""Name of the version that stores zero points as they are, not minus one."""
BITS = (2, 3, 4, 8)
"""Bits of a code that are read."""


def read(layer: Layer) -> Coded | Tensor:
    """Return a matrix; its weights where inputs were reordered (desc_act), so that
    groups are no runs of inputs.
    """
    scale = layer.take(".scales", None, None, None)
    groups, outputs = scale.shape
    packed = layer.take(".qzeros", torch.int32, groups, None)
    bits = WORD * packed.shape[1] // outputs
    if bits not in BITS:
        raise layer.error(
            ".qweight", f"has {bits} bits a weight, and only 2, 3, 4 and 8 are read"
        )
    words = layer.take(".qweight", torch.int32, None, outputs)
    if len(words) * WORD % bits or packed.shape[1] * WORD != outputs * bits:
        raise layer.error(
            ".qweight",
            f"has {len(words)} words, which are no whole codes of {bits} bits",
        )
    codes = unpack(words.T, bits)
    zeros = unpack(packed, bits).to(torch.int32)
    if _layout(layer.settings) != SECOND:
        zeros = (zeros + 1) & ((1 << bits) - 1)
    index = (
        layer.take(".g_idx", None, codes.shape[1])
        if ".g_idx" in layer.tensors
        else None
    )
    return affine(layer, codes, bits, scale.T, zeros.T - (1 << (bits - 1)), index)


def refused(settings: Mapping[str, Any]) -> str:
    """Return the layout of the file, where it is one that is packed for a kernel."""
    layout = _layout(settings)
    return "" if layout in ("gptq", SECOND) else f"checkpoint_format={layout!r}"


def _layout(settings: Mapping[str, Any]) -> str:
    """Return the version; GPTQModel names it `format` too."""
    return settings.get("checkpoint_format") or settings.get("format") or "gptq"


FORMAT = Format(
    (".qweight", ".qzeros", ".scales", ".g_idx"),
    read,
    refused=refused,
)
