"""The files of a checkpoint's weights; checks a config's sizes against their headers,
before allocation.
"""

import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from itertools import chain
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from torch import nn
from transformers import PreTrainedConfig, PreTrainedModel

from foreword.errors import ModelError
from foreword.files import part_paths
from foreword.model.architectures import loader
from foreword.model.loading import hub
from foreword.model.loading.complete import (
    APART,
    INDEX,
    WEIGHTS,
    check_names,
)
from foreword.model.loading.config import LAYERS, read_json

Header = Mapping[str, tuple[list[int], str]]
"""Name of a tensor -> its shape, and its dtype as safetensors names it."""
PICKLED = "*.bin"
NUMBERS = ("F64", "F32", "F16", "BF16")
"""Dtypes of tensors that hold a number in each place; others may be codes."""
FEW_LAYERS = 1000
"""Layers. So many are built without storage in seconds, whatever the files hold."""
FEW_NUMBERS = 2**26
"""Numbers of computed tables: more than the files of small models have."""
NUMBERS_PER_BYTE = 16
"""Twice the numbers that a byte can hold in one bit each."""


def check_sizes(
    source: str | Path,
    config: PreTrainedConfig,
    build: Callable[[], nn.Module],
) -> None:
    """Raise ModelError where a config and the checkpoint's files differ in sizes;
    allocate nothing.

    `build` returns the model without storage. A model that it cannot build is left to
    loading, which says why.
    """
    files = _files(source)
    header = check_layers(source, config)
    try:
        model = build()
    except Exception:  # noqa: BLE001 - code of a checkpoint can raise anything
        return
    check_shapes(source, model, header)
    files = files or list(Path(source).expanduser().glob(PICKLED))
    if files:
        check_total(source, model, sum(file.stat().st_size for file in files))


def check_layers(source: str | Path, config: PreTrainedConfig) -> Header:
    """Return the header of a checkpoint in safetensors; empty for others.

    Raises ModelError where its config names more layers than there are tensors: each
    layer is built one by one.
    """
    header = headers(_files(source))
    for name, layers in _layers(config) if header else ():
        if layers > max(FEW_LAYERS, len(header)):
            raise ModelError(
                f"cannot load the weights of {str(source)!r}: {name} in its config is "
                f"{layers}, and its files hold {len(header)} tensors. Correct "
                "config.json, or download both again"
            )
    return header


def headers(files: Iterable[Path]) -> Header:
    """Return the tensors in safetensors files; damaged files are left out."""
    header: dict[str, tuple[list[int], str]] = {}
    for file in files:
        with (
            suppress(OSError, SafetensorError),
            safe_open(file, framework="pt") as opened,
        ):
            parts = {name: opened.get_slice(name) for name in opened.keys()}  # noqa: SIM118 - no mapping
            header |= {
                name: (part.get_shape(), part.get_dtype())
                for name, part in parts.items()
            }
    return header


def check_shapes(
    source: str | Path,
    model: nn.Module,
    header: Header,
) -> None:
    """Raise ModelError where a tensor's size differs from the parameter of the same
    name in a model without storage.

    A tensor may be stored in another shape, so numbers are counted.
    """
    shapes = {name: tensor.shape for name, tensor in model.state_dict().items()}
    held = {
        name: shape
        for name, (shape, kind) in header.items()
        if kind in NUMBERS and not APART.search(name)
    }
    different: list[tuple[str, list[int], list[int]]] = []
    for name, shape in held.items():
        if name in shapes and math.prod(shape) != shapes[name].numel():
            different.append((name, shape, list(shapes[name])))
    check_names(str(source), (), (), different)


def check_total(source: str | Path, model: nn.Module, size: int) -> None:
    """Raise ModelError where a model without storage has far more numbers than files of
    `size` bytes can hold.
    """
    numbers = sum(
        tensor.numel() for tensor in chain(model.parameters(), model.buffers())
    )
    if numbers > max(FEW_NUMBERS, NUMBERS_PER_BYTE * size):
        raise ModelError(
            f"cannot load the weights of {str(source)!r}: its config asks for "
            f"{numbers} numbers, and its files have {size} bytes. Correct config.json, "
            "or download both again"
        )


def _files(source: str | Path) -> list[Path]:
    """Return the safetensors files of a checkpoint; empty where it has others."""
    index = read_json(source, INDEX)
    names = [WEIGHTS] if index is None else sorted(set(index["weight_map"].values()))
    return [file for file in hub.files(source, names) if file.is_file()]


def _layers(config: PreTrainedConfig) -> Iterator[tuple[str, int]]:
    for part in (config, config.get_text_config()):
        values = ((name, getattr(part, name, None)) for name in LAYERS)
        yield from ((name, value) for name, value in values if type(value) is int)


def files(source: str | Path, *, fetch: bool = True) -> list[Path]:
    """Return a checkpoint's safetensors files by `fetch`, or raise ModelError."""
    index = read_json(source, INDEX)
    names = [WEIGHTS] if index is None else sorted(set(index["weight_map"].values()))
    files = [hub.file(source, name, fetch=fetch) for name in names]
    if not all(file.is_file() for file in files):
        raise ModelError(
            f"cannot load the weights of {str(source)!r}: its weights are read from "
            f"{WEIGHTS}, which does not exist. Use a checkpoint in safetensors"
        )
    return files


def stamps(source: str | Path, *, fetch: bool = True) -> list[tuple[str, int, int]]:
    """Return name, bytes and time of change, in nanoseconds, of a checkpoint's files;
    `fetch` as for `hub.file`.

    Raises ModelError where one does not exist.
    """
    path = hub.gguf(source)
    checkpoint = part_paths(path) if path else files(source, fetch=fetch)
    return [
        (file.name, file.stat().st_size, file.stat().st_mtime_ns)
        for file in map(Path.resolve, checkpoint)
    ]


def empty(config: PreTrainedConfig, **how: Any) -> PreTrainedModel:
    """Return a model without storage: for its class, since from_pretrained of an Auto
    class takes no tensors.
    """
    with torch.device("meta"):
        return loader(config).from_config(config, **how)
