"""Provides reading and writing of drafter checkpoints: folders with a config and
tensors, ours or others'.
"""

from __future__ import annotations

import json
import pickle
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from foreword.errors import ModelError, words
from foreword.model.loading import hub
from foreword.model.loading.complete import check_finite, check_names
from foreword.model.loading.load import pickled
from foreword.model.loading.sizes import check_total

Module = TypeVar("Module", bound=nn.Module)
CONFIG = "config.json"
WEIGHTS = "model.safetensors"
PICKLED = "pytorch_model.bin"


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """The config and tensors of a checkpoint folder."""

    source: str
    config: Mapping[str, Any]
    tensors: Mapping[str, Tensor]

    @classmethod
    def read(cls, source: str | Path) -> Checkpoint:
        """Read a folder, or a repository on the hub.

        Raises ModelError where it is missing or unreadable.
        """
        try:
            config = json.loads(hub.file(source, CONFIG).read_text(encoding="utf-8"))
            if not isinstance(config, dict):
                raise ValueError(f"{CONFIG} holds no JSON object")
            tensors = _tensors(source)
        except ModelError:
            raise
        except pickle.UnpicklingError as error:
            raise pickled(source, error) from error
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
        """Return the bytes that the tensors hold; a pickled one may repeat a number
        along a side.
        """
        storages = [tensor.untyped_storage() for tensor in self.tensors.values()]
        held = {storage.data_ptr(): storage.nbytes() for storage in storages}
        return sum(held.values())


def kinds(source: str | Path) -> tuple[str, ...]:
    """Return the model types in a folder's config; empty without a readable config."""
    try:
        config = json.loads(hub.file(source, CONFIG).read_text(encoding="utf-8"))
    except (OSError, ValueError, ModelError):
        return ()
    return tuple(
        filter(
            None,
            (
                config.get("speculators_model_type"),
                *(config.get("architectures") or ()),
            ),
        )
    )


def _tensors(source: str | Path) -> dict[str, Tensor]:
    try:
        return load_file(hub.file(source, WEIGHTS))
    except OSError:  # the oldest checkpoints are pickled
        if not (path := hub.file(source, PICKLED)).exists():
            raise
        return torch.load(path, map_location="cpu", weights_only=True)
