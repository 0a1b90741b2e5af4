"""Knows the folder that all processes of a run share, and changes folders of models."""

import json
from pathlib import Path
from tempfile import mkdtemp

from safetensors.torch import load_file, save_file
from torch import Tensor

common: list[Path] = []
"""The folder; conftest.py says which."""


def kept() -> Path:
    """Return a new folder for what this process makes once; it goes when the folders of
    pytest do.
    """
    return Path(mkdtemp(dir=common[0]))


def change(
    folder: Path, config: dict[str, object], tensors: dict[str, Tensor | None]
) -> None:
    """Replace fields of the config and tensors of a model; None removes a tensor."""
    fields = json.loads((folder / "config.json").read_text()) | config
    (folder / "config.json").write_text(json.dumps(fields))
    weights = load_file(folder / "model.safetensors") | tensors
    weights = {name: tensor for name, tensor in weights.items() if tensor is not None}
    save_file(weights, folder / "model.safetensors")
