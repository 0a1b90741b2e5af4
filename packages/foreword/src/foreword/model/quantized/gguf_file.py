"""A GGUF file, or the parts of one, checked before anything is built from it.

Specification: ggml-org/ggml, docs/gguf.md; of parts, ggml-org/llama.cpp,
tools/gguf-split: the first has the metadata, each its own offsets.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from hashlib import blake2b
from importlib import import_module
from pathlib import Path
from threading import RLock
from typing import Any

import torch
from jaxtyping import Float32, UInt8
from torch import Tensor

from foreword.errors import ModelError, words
from foreword.files import part_paths
from foreword.model.quantized.coded import Coded
from foreword.model.quantized.gguf import FLOATS, check_kind, coded
from foreword.model.quantized.gguf_header import Header, TensorData

NUMBER, COUNT = "split.no", "split.count"
TENSORS = "split.tensors.count"
"""Fields of each part: its number, from 0, the number of parts, and all tensors."""
SAME = (COUNT, TENSORS, "general.architecture", "general.name")
"""Fields that are equal in all parts that have them."""


def check_parts(
    source: str, paths: Sequence[Path], headers: Sequence[Header]
) -> dict[str, TensorData]:
    """Return the tensor of each name in all parts.

    `headers`: the header of each path. Raises ModelError, with the names of files,
    where they are not the parts of one model.
    """
    first = headers[0]
    names = [path.name for path in paths]
    count = first.fields.get(COUNT) or 1
    if len(paths) == 1 and count > 1:
        raise ModelError(
            f"cannot read {source}: it is one of {count} parts, and its name does not "
            f"say which. Name the parts NAME-00001-of-{count:05d}.gguf and so on"
        )
    if len(paths) > 1:
        for number, header in enumerate(headers):
            _check_number(source, names, number, header)
            _check_same(source, names, number, headers)
    tensors = _joined(source, names, headers)
    expected = first.fields.get(TENSORS)
    if expected is not None and expected != len(tensors):
        raise ModelError(
            f"cannot read {source}: {names[0]} says that there are {expected} tensors, "
            f"and {_listed(names)} hold {len(tensors)}. {AGAIN}"
        )
    return tensors


AGAIN = "Download all parts of the same model again"


def _check_number(
    source: str, names: Sequence[str], number: int, header: Header
) -> None:
    """Raise ModelError for a part with another number, or of another number of parts,
    than its name says.
    """
    part = header.fields.get(NUMBER)
    count = header.fields.get(COUNT)
    if part is None or count is None:
        raise ModelError(
            f"cannot read {source}: {names[number]} lacks the fields of a part "
            f"({NUMBER}, {COUNT}). {AGAIN}"
        )
    if (part, count) != (number, len(names)):
        raise ModelError(
            f"cannot read {source}: {names[number]} holds part {part + 1} of {count}, "
            f"not part {number + 1} of {len(names)}. {AGAIN}"
        )


def _check_same(
    source: str, names: Sequence[str], number: int, headers: Sequence[Header]
) -> None:
    """Raise ModelError for a part that belongs to another model than the first one."""
    for field in SAME:
        first = headers[0].fields.get(field)
        value = headers[number].fields.get(field)
        if value is not None and value != first:
            raise ModelError(
                f"cannot read {source}: {names[number]} is a part of another model "
                f"than {names[0]}: {field} is {value!r}, not {first!r}. {AGAIN}"
            )


def _joined(
    source: str, names: Sequence[str], headers: Sequence[Header]
) -> dict[str, TensorData]:
    """Return the tensors of all parts. Raises ModelError for a repeated one."""
    tensors: dict[str, TensorData] = {}
    places: dict[str, str] = {}
    for name, header in zip(names, headers, strict=True):
        for tensor in header.tensors:
            if tensor.name in tensors:
                raise ModelError(
                    f"cannot read {source}: {places[tensor.name]} and {name} both hold "
                    f"the tensor {tensor.name}. {AGAIN}"
                )
            tensors[tensor.name] = tensor
            places[tensor.name] = name
    return tensors


def _listed(names: Sequence[str]) -> str:
    return f"{names[0]} to {names[-1]}" if len(names) > 1 else names[0]


ARCHITECTURES = {
    "llama": "llama",
    "qwen2": "qwen2",
    "qwen3": "qwen3",
    "qwen2moe": "qwen2_moe",
    "qwen3moe": "qwen3_moe",
    "gemma2": "gemma2",
    "gemma3": "gemma3_text",
    "phi3": "phi3",
    "smollm3": "smollm3",
    "gpt-oss": "gpt_oss",
    "lfm2": "lfm2",
    "qwen35": "qwen3_5_text",
    "qwen35moe": "qwen3_5_moe_text",
}
"""Model types of the architectures that are read, each with a test; Mistral's files
are called llama.
"""
ROPE = ("rope_freqs.weight", "rope_factors_long.weight", "rope_factors_short.weight")
"""Tensors that describe positions: they go into the config."""
MATRIX = 2
"""Dimensions of a matrix; matrices of experts have another one for the expert."""


@dataclass(frozen=True, slots=True)
class GgufFile:
    """The fields and tensors of a GGUF file; data stays on disk until read."""

    source: str
    """The source as the caller named it, for messages."""
    paths: tuple[Path, ...]
    """All parts of the model, the first one first."""
    architecture: str
    headers: Sequence[Header]
    """The header of each part."""
    tensors: Mapping[str, TensorData]
    """Tensors of all parts, by name."""

    @classmethod
    def open(cls, source: str | Path, path: Path) -> "GgufFile":
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
        """Let go of a file's pages, which count as memory of this process, and unmap it
        once nothing else holds its tensors.
        """
        first = part_paths(path)[0].resolve()
        with _LOCK:
            for key in [key for key in _OPENED if key[1][0][0] == first]:
                _OPENED.pop(key).free()

    def free(self) -> None:
        """Run `Header.free` on all parts."""
        for header in self.headers:
            header.free()

    @property
    def bytes(self) -> int:
        """Bytes of all parts."""
        return sum(path.stat().st_size for path in self.paths)

    def digest(self) -> str:
        """Return a hash of the header."""
        with self.paths[0].open("rb") as file:
            header = file.read(self.headers[0].end)
        return blake2b(header, digest_size=16).hexdigest()

    def field(self, name: str) -> Any:
        """Return a field's value or None. "{}" stands for the architecture."""
        return self.headers[0].field(name.format(self.architecture))

    def values(self, name: str) -> list[float]:
        """Return the numbers of a vector."""
        return self.tensors[name].data.tolist()

    def in_few_bits(self, name: str) -> bool:
        """Return whether a tensor is a quantized matrix."""
        tensor = self.tensors[name]
        return len(tensor.shape) >= MATRIX and tensor.kind not in FLOATS

    def coded(self, name: str, rows: slice = slice(None)) -> Coded | None:
        """Return some outputs of a quantized matrix, or of the matrices of all experts
        joined; None where the tensor is not quantized.
        """
        if not self.in_few_bits(name):
            return None
        kind, data = self.blocks(name, rows)
        matrix = coded(name, kind, data)
        self.free()
        return matrix

    def blocks(
        self, name: str, rows: slice
    ) -> tuple[str, UInt8[Tensor, "outputs bytes"]]:
        """Return the type of a quantized matrix, and the bytes of some outputs."""
        self.free()
        tensor = self.tensors[name]
        return tensor.kind, torch.from_numpy(tensor.data).flatten(0, -2)[rows]

    def numbers(self, name: str) -> Float32[Tensor, "*shape"]:
        """Return a tensor in its own shape; a quantized matrix is dequantized."""
        tensor = self.tensors[name]
        if (matrix := self.coded(name)) is not None:
            return matrix.dense().view(tensor.shape[::-1])
        data = torch.from_numpy(tensor.data)
        if tensor.kind == "BF16":
            data = data.view(torch.bfloat16)
        # a copy: nothing that is kept may hold the map
        return data.to(torch.float32, copy=True).view(tensor.shape[::-1])

    def names(self, layers: int) -> Any:
        """Return the map from names of modules in transformers to names of tensors."""
        return _names(self.architecture, layers)


MOST_OPENED = 2
"""Files: a target's and its draft's, opened for config, tokenizer, weights."""
_OPENED: dict[tuple[str, tuple[tuple[Path, int], ...]], GgufFile] = {}
"""By source, and the path and time of change, in nanoseconds, of each part."""
_LOCK = RLock()
"""Held while files are opened or forgotten: other threads may load other models."""


@cache
def _names(architecture: str, layers: int) -> Any:
    gguf: Any = import_module("gguf")
    kinds = {name: kind for kind, name in gguf.MODEL_ARCH_NAMES.items()}
    return gguf.get_tensor_name_map(kinds[architecture], layers)


def _opened(source: str, paths: tuple[Path, ...], called: Sequence[Path]) -> GgufFile:
    """Open the parts of a file; `called`: their paths before links were followed."""
    headers = [
        _parsed(source, path, name.name if len(paths) > 1 else "it")
        for path, name in zip(paths, called, strict=True)
    ]
    tensors = check_parts(source, called, headers)
    try:
        architecture = headers[0].fields["general.architecture"]
    except KeyError as error:
        raise _damaged(source, "it", error) from error
    file = GgufFile(source, paths, architecture, headers, tensors)
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
    for tensor in tensors.values():
        check_kind(tensor.name, tensor.kind)
    return file


def _parsed(source: str, path: Path, called: str) -> Header:
    """Return the header of one part, `called` so in messages."""
    try:
        return Header(path)
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
