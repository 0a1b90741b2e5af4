"""Provides a GGUF file, checked before anything is built from it, and its quantized
matrices.

Specification: ggml-org/ggml, docs/gguf.md. The package gguf parses the file.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
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
    path: Path
    architecture: str
    reader: Any
    """GGUFReader of the file."""
    fields: Mapping[str, Any]
    """ReaderField of each name."""
    tensors: Mapping[str, Any]
    """ReaderTensor of each name."""

    @classmethod
    def open(cls, source: str | Path, path: Path) -> GgufFile:
        """Open a file, or return it as it was opened last.

        Raises ModelError if it is damaged or not supported.
        """
        key = str(source), path.resolve(), path.stat().st_mtime_ns
        with _LOCK:
            if (file := _OPENED.get(key)) is None:
                file = _opened(*key[:2])
                while len(_OPENED) >= MOST_OPENED:
                    _OPENED.pop(next(iter(_OPENED)))
                _OPENED[key] = file
        return file

    @staticmethod
    def forget(path: Path) -> None:
        """Unmap a file, whose pages count as memory of this process, once nothing else
        holds its tensors.
        """
        with _LOCK:
            for key in [key for key in _OPENED if key[1] == path.resolve()]:
                del _OPENED[key]

    @contextmanager
    def lent(self) -> Iterator[None]:
        """Let transformers take what was parsed here while inside: a large vocabulary
        takes seconds to parse.
        """
        gguf: Any = import_module("gguf")
        with _LOCK:
            reader = gguf.GGUFReader
            gguf.GGUFReader = lambda path, *how: (
                self.reader if Path(path).resolve() == self.path else reader(path, *how)
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
_OPENED: dict[tuple[str, Path, int], GgufFile] = {}
"""By source, path and time of change, in nanoseconds."""
_LOCK = RLock()
"""Held while files are opened, forgotten or lent: other threads may load
other models.
"""


def _opened(source: str, path: Path) -> GgufFile:
    try:
        reader = parsed(path)
        architecture = reader.fields["general.architecture"].contents()
    except ImportError as error:
        raise ModelError(
            f"cannot read {source}: the package gguf is not installed. Run: pip "
            "install 'foreword[gguf]'"
        ) from error
    except Exception as error:
        raise ModelError(
            f"cannot read {source}: it is not a complete GGUF file: {words(error)}. "
            "Download it again"
        ) from error
    file = GgufFile(
        source,
        path,
        architecture,
        reader,
        reader.fields,
        {tensor.name: tensor for tensor in reader.tensors},
    )
    if architecture not in ARCHITECTURES:
        raise ModelError(
            f"cannot read {source}: its architecture {architecture!r} is not "
            f"supported. Use a file of one of {', '.join(ARCHITECTURES)}, or the same "
            "model in safetensors"
        )
    if (file.field("split.count") or 1) > 1:
        raise ModelError(
            f"cannot read {source}: it is one of several parts. Join them: "
            "llama-gguf-split --merge"
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
