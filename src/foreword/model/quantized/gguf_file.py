"""Provides a GGUF file, checked before anything is built from it, and the matrices in few bits that it holds.

Specification: ggml-org/ggml, docs/gguf.md. The package gguf parses the file, transformers builds the model.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
import torch
from jaxtyping import Int
from torch import Tensor, nn
from transformers import PreTrainedModel

from foreword.errors import ModelError, words
from foreword.model.quantized.coded import Coded
from foreword.model.quantized.gguf import check_kind, coded

ARCHITECTURES = ("llama", "qwen2", "qwen3", "qwen2moe", "qwen3moe", "gemma2", "gemma3", "phi3")
"""Names that the files have for the architectures that are read, each with a test; Mistral's are called llama."""
ROPE = ("rope_freqs.weight", "rope_factors_long.weight", "rope_factors_short.weight")
"""Tensors that describe positions: they go into the config."""
ROWS = 64
"""Outputs. So many of each matrix, picked at random, are compared with the weights that transformers loaded."""


@dataclass(frozen=True, slots=True)
class GgufFile:
    """The fields and tensors of a GGUF file, whose data stays on disk until it is read."""

    source: str
    """What the caller named, for messages."""
    architecture: str
    fields: Mapping[str, Any]
    """ReaderField of each name."""
    tensors: Mapping[str, Any]
    """ReaderTensor of each name."""

    @classmethod
    def open(cls, source: str | Path, path: Path) -> GgufFile:
        """Open a file. Raises ModelError where it is damaged, or holds what is not supported."""
        return _opened(str(source), path, path.stat().st_mtime_ns)

    def field(self, name: str) -> Any:
        """Return the value of a field; None where there is none. "{}" stands for the architecture."""
        field = self.fields.get(name.format(self.architecture))
        return None if field is None else field.contents()

    def values(self, name: str) -> list[float]:
        """Return the numbers of a vector."""
        return self.tensors[name].data.tolist()

    def coded(self, name: str) -> Coded | None:
        """Return a matrix in few bits; None where there is none of that name, or it holds numbers."""
        tensor = self.tensors.get(name)
        if tensor is None or len(tensor.shape) != 2 or tensor.data.dtype != np.uint8:
            return None
        return coded(name, tensor.tensor_type.name, torch.from_numpy(np.array(tensor.data)))

    def names(self, layers: int) -> Any:
        """Return the map from names of modules in transformers to names of tensors."""
        gguf: Any = import_module("gguf")
        kind = next(kind for kind, name in gguf.MODEL_ARCH_NAMES.items() if name == self.architecture)
        return gguf.get_tensor_name_map(kind, layers)


@lru_cache(maxsize=2)  # a target and its draft: each is opened for its config, its tokenizer and its weights
def _opened(source: str, path: Path, changed: int) -> GgufFile:
    del changed  # another time of change is another file
    for package in ("gguf", "accelerate"):
        try:
            import_module(package)
        except ImportError as error:
            raise ModelError(
                f"cannot read {source}: the package {package} is not installed. Run: pip install 'foreword[gguf]'"
            ) from error
    gguf: Any = import_module("gguf")
    try:
        reader = gguf.GGUFReader(path)
        architecture = reader.fields["general.architecture"].contents()
    except Exception as error:
        raise ModelError(
            f"cannot read {source}: it is no complete GGUF file: {words(error)}. Download it again"
        ) from error
    file = GgufFile(source, architecture, reader.fields, {tensor.name: tensor for tensor in reader.tensors})
    if architecture not in ARCHITECTURES:
        raise ModelError(
            f"cannot read {source}: its architecture {architecture!r} is not supported. Use a file of one of "
            f"{', '.join(ARCHITECTURES)}, or the same model in safetensors"
        )
    if (file.field("split.count") or 1) > 1:
        raise ModelError(f"cannot read {source}: it is one of several parts. Join them: llama-gguf-split --merge")
    if "token_embd.weight" not in file.tensors:
        raise ModelError(f"cannot read {source}: it lacks token_embd.weight. Use a file that holds a language model")
    for tensor in reader.tensors:
        check_kind(tensor.name, tensor.tensor_type.name)
    return file


def _check_names(file: GgufFile, model: PreTrainedModel) -> None:
    """Raise ModelError for a tensor that the model of transformers has no place for: it would be left out."""
    names = file.names(model.config.num_hidden_layers)
    used = {names.get_name(name, try_suffixes=(".weight", ".bias")) for name in model.state_dict()}
    for name in file.tensors:
        if name not in used and name not in ROPE and "_exps." not in name:
            raise ModelError(
                f"cannot read {file.source}: {type(model).__name__} has no place for its tensor {name}. Use the same "
                "model in safetensors"
            )


def attach(file: GgufFile, model: PreTrainedModel) -> None:
    """Set `coded` on each linear layer whose weight the file holds in few bits, equal to its weight.

    Layers whose rows transformers orders in another way than is known here stay without. Raises ModelError for a
    tensor that the model has no place for.
    """
    _check_names(file, model)
    names = file.names(model.config.num_hidden_layers)
    tied = "output.weight" not in file.tensors
    for name, module in model.named_modules():
        if type(module) is not nn.Linear:
            continue
        theirs = "token_embd" if tied and module is model.get_output_embeddings() else names.get_name(name)
        found = file.coded(f"{theirs}.weight")
        if found is None or found.codes.shape != module.weight.shape:
            continue
        if file.architecture == "llama" and theirs.endswith(("attn_q", "attn_k")):
            found = found.rows(halves(len(found.codes), model.config.head_dim))
        if _equal(found, module.weight):
            module.coded = found  # type: ignore[assignment]


def halves(rows: int, size: int) -> Int[Tensor, "rows"]:
    """Return the rows of a projection to heads of this size in the order of transformers.

    Llama.cpp rotates the pair 2i and 2i + 1 of a head by the angle of transformers' pair i and size / 2 + i.
    """
    return torch.arange(rows).view(-1, size // 2, 2).transpose(1, 2).flatten()


def _equal(one: Coded, weight: Tensor) -> bool:
    index = torch.randint(len(weight), (ROWS,), generator=torch.Generator().manual_seed(0))
    return torch.equal(one.rows(index).dense().to(weight.dtype), weight[index])
