"""Reads and writes drafter checkpoints, ours or others': a config and tensors."""

import json
import pickle
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from foreword.errors import ModelError, words
from foreword.model.loading import hub
from foreword.model.loading.complete import check_finite, check_names
from foreword.model.loading.load import pickled
from foreword.model.loading.sizes import check_total
from foreword.registry import HEAD_FILES

Module = TypeVar("Module", bound=nn.Module)
CONFIG = "config.json"
WEIGHTS = "model.safetensors"
PICKLED = "pytorch_model.bin"
FILES = (WEIGHTS, PICKLED, *HEAD_FILES)
"""Files that may hold the tensors, or whose `.index.json` names several that do; the
first that exists is read.
"""
INDEX = ".index.json"


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """The config and tensors of a checkpoint folder."""

    source: str
    config: Mapping[str, Any]
    tensors: Mapping[str, Tensor]

    @classmethod
    def read(cls, source: str | Path) -> "Checkpoint":
        """Read a folder or a repository of the hub, or raise ModelError."""
        try:
            config = json.loads(hub.file(source, CONFIG).read_text(encoding="utf-8"))
            if not isinstance(config, dict):
                raise ValueError(f"{CONFIG} holds no JSON object")
            tensors = _tensors(source)
        except ModelError:
            raise
        except pickle.UnpicklingError as error:
            raise pickled(source, error) from error
        except SafetensorError as error:
            raise ModelError(
                f"cannot load a drafter from {str(source)!r}: its safetensors file is "
                f"damaged or incomplete ({words(error)}). Download it again"
            ) from error
        except Exception as error:
            raise ModelError(
                f"cannot load a drafter from {str(source)!r}: {words(error)}. Give a "
                f"folder that holds {CONFIG} and {WEIGHTS}"
            ) from error
        check_finite(str(source), tensors)
        return cls(str(source), config, tensors)

    def write(self, folder: Path) -> None:
        """Create the folder with config.json and model.safetensors."""
        folder.mkdir(parents=True, exist_ok=True)
        (folder / CONFIG).write_text(
            json.dumps(dict(self.config), indent=2) + "\n", encoding="utf-8"
        )
        save_file(
            {name: tensor.contiguous() for name, tensor in self.tensors.items()},
            folder / WEIGHTS,
        )

    def filled(self, make: Callable[[], Module]) -> Module:
        """Return `make()` with these weights, by name. Raises ModelError where one is
        missing or has another shape.

        Unexpected tensors are refused too: without them, the module would compute
        something else. A module without storage is checked first, so a config allocates
        no more than the tensors take.
        """
        self._check_names(self._empty(make))
        module = make()
        module.load_state_dict(dict(self.tensors))
        return module

    def check_sides(self, entries: Mapping[str, Any]) -> None:
        """Raise ModelError for an entry of the config that is larger than any side of
        the tensors.

        `entries`: sides of weights, or factors of a side.
        """
        sides = (side for tensor in self.tensors.values() for side in tensor.shape)
        longest = max(sides, default=0)
        for name, value in entries.items():
            self.check_most(name, value, longest, "the longest side of its tensors")

    def check_most(self, name: str, value: Any, most: int, what: str) -> None:
        """Raise ModelError for an entry of the config that is more than its tensors
        allow; `what` names `most`.
        """
        if isinstance(value, int) and value > most:
            raise ModelError(
                f"cannot load {self.source}: {name} in its {CONFIG} is {value}, and "
                f"{what} is {most}. Correct {CONFIG}, or download both again"
            )

    def _empty(self, make: Callable[[], Module]) -> Module:
        """Return `make()` without storage."""
        try:
            with torch.device("meta"):
                module = make()
        except Exception as error:
            raise ModelError(
                f"cannot load {self.source}: its {CONFIG} describes no drafter: "
                f"{words(error)}. Correct {CONFIG}, or download both again"
            ) from error
        return module

    def _check_names(self, empty: nn.Module) -> None:
        expected = empty.state_dict()
        missing = set(expected) - set(self.tensors)
        extra = set(self.tensors) - set(expected)
        both = [
            (name, tensor.shape, expected[name].shape)
            for name, tensor in self.tensors.items()
            if name in expected
        ]
        check_names(
            self.source, missing, extra, [one for one in both if one[1] != one[2]]
        )
        check_total(self.source, empty, self._bytes())

    def _bytes(self) -> int:
        """Return the bytes of the tensors; a pickled one may repeat a number."""
        storages = [tensor.untyped_storage() for tensor in self.tensors.values()]
        held = {storage.data_ptr(): storage.nbytes() for storage in storages}
        return sum(held.values())


def _tensors(source: str | Path) -> dict[str, Tensor]:
    for name in FILES:
        if (path := _existing(source, name)) is not None:
            return _read(path)
        if (path := _existing(source, name + INDEX)) is not None:
            return _shards(source, path)
    raise ModelError(
        f"cannot load a drafter from {str(source)!r}: it holds {CONFIG} but no "
        f"weights: none of {', '.join(FILES)}. Copy the file of weights beside "
        f"{CONFIG}, or download both again"
    )


def _existing(source: str | Path, name: str) -> Path | None:
    """Return the path of a file of a checkpoint; None where it has none."""
    try:
        path = hub.file(source, name)
    except OSError:  # the hub has no such file
        return None
    return path if path.is_file() else None


def _shards(source: str | Path, index: Path) -> dict[str, Tensor]:
    """Read the files that an index names. Raises ModelError where one is missing."""
    parts = json.loads(index.read_text(encoding="utf-8"))["weight_map"].values()
    tensors: dict[str, Tensor] = {}
    for part in sorted(set(parts)):
        if (path := _existing(source, part)) is None:
            raise ModelError(
                f"cannot load a drafter from {str(source)!r}: {index.name} names "
                f"{part}, which is missing. Download it again"
            )
        tensors |= _read(path)
    return tensors


def _read(path: Path) -> dict[str, Tensor]:
    """Return the tensors of a file by name. Raises ModelError where a pickled file
    holds something else.
    """
    if path.suffix == ".safetensors":
        return load_file(path)
    content = torch.load(path, map_location="cpu", weights_only=True)
    if not isinstance(content, dict) or not all(
        isinstance(name, str) and isinstance(tensor, Tensor)
        for name, tensor in content.items()
    ):
        raise ModelError(
            f"cannot load {path}: it is not a dict from names to tensors. Save the "
            "state dict of the head, best as safetensors"
        )
    return dict(content)
