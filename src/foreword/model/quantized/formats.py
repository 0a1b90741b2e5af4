"""Provides the quantization methods whose checkpoints are read, by the name in their
config.
"""

from __future__ import annotations

from collections.abc import Mapping

from foreword.model.quantized import awq, bitsandbytes, compressed, gptq, mxfp4, torchao
from foreword.model.quantized.layer import Format

FORMATS: Mapping[str, Format] = {
    "awq": awq.FORMAT,
    "bitsandbytes": bitsandbytes.FORMAT,
    "compressed-tensors": compressed.FORMAT,
    "gptq": gptq.FORMAT,
    "mxfp4": mxfp4.FORMAT,
    "torchao": torchao.FORMAT,
}
"""The value of quant_method -> how it stores a matrix."""
