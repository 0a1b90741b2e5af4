"""Reader of AWQ: 4-bit codes packed along the outputs, interleaved, layout "gemm"."""

from collections.abc import Mapping
from typing import Any

import torch
from jaxtyping import Int, UInt8
from torch import Tensor

from foreword.model.quantized.coded import Coded
from foreword.model.quantized.layer import Format, Layer, affine, unpack

ORDER = (0, 4, 1, 5, 2, 6, 3, 7)
"""Where each of eight outputs stands in its word, lowest bits first."""


def read(layer: Layer) -> Coded | Tensor:
    """Return a matrix."""
    scale = layer.take(".scales", None, None, None)
    groups, outputs = scale.shape
    codes = _unpacked(layer.take(".qweight", torch.int32, None, outputs // 8))
    zeros = _unpacked(layer.take(".qzeros", torch.int32, groups, outputs // 8))
    return affine(layer, codes.T.contiguous(), 4, scale.T, zeros.T.to(torch.int32) - 8)


def refused(settings: Mapping[str, Any]) -> str:
    """Return the layout or the bits of the file, where these are not "gemm" and 4."""
    version = settings.get("version", "gemm")
    bits = settings.get("bits", settings.get("w_bit", 4))
    if bits != 4:
        return f"bits={bits!r}"
    return "" if str(version).lower() == "gemm" else f"version={version!r}"


def _unpacked(words: Int[Tensor, "rows words"]) -> UInt8[Tensor, "rows outputs"]:
    return unpack(words, 4).unflatten(1, (-1, 8))[..., ORDER].flatten(1)


FORMAT = Format((".qweight", ".qzeros", ".scales"), read, refused=refused)
