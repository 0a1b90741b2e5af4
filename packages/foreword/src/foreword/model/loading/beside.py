"""Reads tensors of a checkpoint that the model itself has no place for, such as layers
for drafting.
"""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open
from torch import Tensor

from foreword.errors import ModelError
from foreword.model.loading import hub
from foreword.model.loading.complete import (
    INDEX,
    WEIGHTS,
    check_finite,
)
from foreword.model.loading.config import (
    QUANTIZATION,
    quantization_file,
    read_json,
)
from foreword.model.loading.quantized import read_tensors
from foreword.model.loading.sizes import files
from foreword.registry import WEIGHT_FORMATS


def tensor_names(source: str | Path) -> tuple[str, ...]:
    """Return the names of the tensors in the safetensors files of a checkpoint; none
    where it has no such files.
    """
    try:
        index = read_json(source, INDEX)
        if index is not None:
            return tuple(index["weight_map"])
        file = hub.file(source, WEIGHTS)
        with safe_open(file, framework="pt") as opened:
            return tuple(opened.keys())
    except (OSError, ModelError, KeyError, ValueError):
        return ()


def read_beside(
    source: str | Path, predicate: Callable[[str], object], dtype: torch.dtype
) -> dict[str, Tensor]:
    """Return the tensors of a checkpoint whose names satisfy `predicate`, quantized
    ones dequantized to `dtype`.

    Raises ModelError for one that cannot be read, or that is not finite.
    """
    settings = _quantization(source)
    opened = _holding(source, predicate)
    if settings is None:
        weights: dict[str, Tensor] = {}
        for file in opened:
            with safe_open(file, framework="pt") as tensors:
                names = [name for name in tensors.keys() if predicate(name)]  # noqa: SIM118 - a handle cannot be iterated
                weights |= {name: tensors.get_tensor(name) for name in names}
    else:
        weights, matrices, _ = read_tensors(
            str(source), opened, settings, dtype, lambda name: bool(predicate(name))
        )
        weights |= {name: matrix.weights(dtype) for name, matrix in matrices.items()}
    check_finite(str(source), weights)
    return weights


def _quantization(source: str | Path) -> dict[str, Any] | None:
    """Return the settings of a checkpoint whose quantized matrices can be read."""
    config = read_json(source, hub.CONFIG) or {}
    text = config.get("text_config") or {}
    settings = config.get(QUANTIZATION) or text.get(QUANTIZATION)
    settings = settings or quantization_file(source)
    if not isinstance(settings, dict):
        return None
    return settings if settings.get("quant_method") in WEIGHT_FORMATS else None


def _holding(source: str | Path, predicate: Callable[[str], object]) -> list[Path]:
    """Return the files that hold such tensors."""
    index = read_json(source, INDEX)
    if index is None:
        return files(source)
    names = {file for name, file in index["weight_map"].items() if predicate(name)}
    return [file for file in files(source) if file.name in names]
