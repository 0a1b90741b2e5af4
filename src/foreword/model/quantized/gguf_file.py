"""Provides a GGUF file, checked before anything is built from it, and its quantized
matrices.

Specification: ggml-org/ggml, docs/gguf.md. The package gguf parses the file.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from threading import RLock
from typing import Any

import numpy as np
import torch
from jaxtyping import Float32
from torch import Tensor

from foreword.errors import ModelError, words
from foreword.model.quantized.coded import Coded
from foreword.model.quantized.gguf import FLOATS, check_kind, coded
from foreword.model.quantized.gguf_parts import check_parts, part_paths
from foreword.model.quantized.gguf_reader import parsed

ARCHITECTURES = (
    *("llama", "qwen2", "qwen3", "qwen2moe", "qwen3moe", "gemma2", "gemma3", "phi3"),
    *("smollm3", "gpt-oss", "lfm2", "qwen35", "qwen35moe"),
)
"""Names that the files have for the architectures that are read, each with a test;
Mistral's are called llama.
"""
ROPE = ("rope_freqs.weight", "rope_factors_long.weight", "rope_factors_short.weight")
"""Tensors that describe positions: they go into the config."""
MATRIX = 2
"""Dimensions of a matrix; matrices of experts have another one for the expert."""


@dataclass(frozen=True, slots=True)
class GgufFile:
    """The fields and tensors of a GGUF file, whose data stays on disk until
    it is read.
    """

    source: str
    """The source as the caller named it, for messages."""
    paths: tuple[Path, ...]
    """All parts of the model, the first one first."""
    architecture: str
    reader: Any
    """GGUFReader of the first part, with the tensors of all."""
    fields: Mapping[str, Any]
    """ReaderField of each name."""
    tensors: Mapping[str, Any]
    """ReaderTensor of each name."""

    @classmethod
    def open(cls, source: str | Path, path: Path) -> GgufFile:
        """Open a file, or return it as it was opened last.

        Raises ModelError if it is damaged or not supported.
        """
        paths = tuple(part.resolve() for part in part_paths(path))
        key = str(source), tuple((part, part.stat().st_mtime_ns) for part in paths)
        with _LOCK:
            if (file := _OPENED.get(key)) is None:
                file = _opened(str(source), paths, part_paths(path))
                while len(_OPENED) >= MOST_OPENED:
                    _OPENED.pop(next(iter(_OPENED)))
                _OPENED[key] = file
        return file

    @staticmethod
    def forget(path: Path) -> None:
        """Unmap a file, whose pages count as memory of this process, once nothing else
        holds its tensors.
        """
        first = part_paths(path)[0].resolve()
        with _LOCK:
            for key in [key for key in _OPENED if key[1][0][0] == first]:
                del _OPENED[key]

    @property
    def bytes(self) -> int:
        """Bytes of all parts."""
        return sum(path.stat().st_size for path in self.paths)

    @contextmanager
    def lent(self) -> Iterator[None]:
        """Let transformers take what was parsed here while inside: a large vocabulary
        takes seconds to parse.
        """
        gguf: Any = import_module("gguf")
        with _LOCK:
            reader = gguf.GGUFReader
            gguf.GGUFReader = lambda path, *how: (
                self.reader
                if Path(path).resolve() == self.paths[0]
                else reader(path, *how)
            )
            try:
                yield
            finally:
                gguf.GGUFReader = reader

    def field(self, name: str) -> Any:
        """Return the value of a field; None where there is none.

        "{}" stands for the architecture.
        """
        field = self.fields.get(name.format(self.architecture))
        return None if field is None else field.contents()

    def values(self, name: str) -> list[float]:
        """Return the numbers of a vector."""
        return self.tensors[name].data.tolist()

    def in_few_bits(self, name: str) -> bool:
        """Return whether a tensor is a quantized matrix."""
        tensor = self.tensors[name]
        return len(tensor.shape) >= MATRIX and tensor.tensor_type.name not in FLOATS

    def coded(self, name: str) -> Coded | None:
        """Return a quantized matrix, or the matrices of all experts joined; None where
        the tensor is not quantized.
        """
        if not self.in_few_bits(name):
            return None
        tensor = self.tensors[name]
        data = torch.from_numpy(np.array(tensor.data))
        return coded(name, tensor.tensor_type.name, data.flatten(0, -2))

    def numbers(self, name: str) -> Float32[Tensor, "*shape"]:
        """Return the numbers of a tensor in its own shape; a quantized matrix is
        dequantized.
        """
        tensor = self.tensors[name]
        shape = [int(size) for size in self.tensors[name].shape][::-1]
        if (found := self.coded(name)) is not None:
            return found.dense().view(shape)
        data = torch.from_numpy(np.array(tensor.data))
        return (
            (data.view(torch.bfloat16) if tensor.tensor_type.name == "BF16" else data)
            .float()
            .view(shape)
        )

    def names(self, layers: int) -> Any:
        """Return the map from names of modules in transformers to names of tensors."""
        gguf: Any = import_module("gguf")
        kind = next(
            kind
            for kind, name in gguf.MODEL_ARCH_NAMES.items()
            if name == self.architecture
        )
        return gguf.get_tensor_name_map(kind, layers)


MOST_OPENED = 2
"""Files.

A target and its draft: each is opened for its config, its tokenizer and its weights.
"""
_OPENED: dict[tuple[str, tuple[tuple[Path, int], ...]], GgufFile] = {}
"""By source, and the path and time of change, in nanoseconds, of each part."""
_LOCK = RLock()
"""Held while files are opened, forgotten or lent: other threads may load
other models.
"""


def _opened(source: str, paths: tuple[Path, ...], called: Sequence[Path]) -> GgufFile:
    """Open the parts of a file; `called`: their paths before links were followed."""
    readers: list[Any] = []
    for path, name in zip(paths, called, strict=True):
        readers.append(_parsed(source, path, name.name if len(paths) > 1 else "it"))
    reader = readers[0]
    tensors = check_parts(source, called, readers)
    reader.tensors = list(tensors.values())
    try:
        architecture = reader.fields["general.architecture"].contents()
    except Exception as error:
        raise _damaged(source, "it", error) from error
    file = GgufFile(source, paths, architecture, reader, reader.fields, tensors)
    if architecture not in ARCHITECTURES:
        raise ModelError(
            f"cannot read {source}: its architecture {architecture!r} is not "
            f"supported. Use a file of one of {', '.join(ARCHITECTURES)}, or the same "
            "model in safetensors"
        )
    layers = file.field("{}.block_count")
    if isinstance(layers, int) and layers > len(file.tensors):
        raise ModelError(
            f"cannot read {source}: its header says {layers} layers, and it holds "
            f"{len(file.tensors)} tensors. Download it again"
        )
    if "token_embd.weight" not in file.tensors:
        raise ModelError(
            f"cannot read {source}: it lacks token_embd.weight. Use a file that holds "
            "a language model"
        )
    for tensor in reader.tensors:
        check_kind(tensor.name, tensor.tensor_type.name)
    return file


def _parsed(source: str, path: Path, called: str) -> Any:
    """Return the GGUFReader of one part, `called` so in messages."""
    try:
        return parsed(path)
    except ImportError as error:
        raise ModelError(
            f"cannot read {source}: the package gguf is not installed. Run: pip "
            "install 'foreword[gguf]'"
        ) from error
    except Exception as error:
        raise _damaged(source, called, error) from error


def _damaged(source: str, called: str, error: Exception) -> ModelError:
    return ModelError(
        f"cannot read {source}: {called} is not a complete GGUF file: {words(error)}. "
        "Download it again"
    )
