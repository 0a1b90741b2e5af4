"""Knows the folder that all processes of a run share, and changes folders of models."""

import importlib.util
import json
import shutil
import sys
from pathlib import Path
from tempfile import mkdtemp
from types import ModuleType

from safetensors.torch import load_file, save_file
from torch import Tensor

common: list[Path] = []
"""The folder; conftest.py says which."""


def kept() -> Path:
    """Return a new folder for what this process makes once, until pytest ends."""
    return Path(mkdtemp(dir=common[0]))


def edit(file: Path, **values: object) -> None:
    """Replace entries of a JSON file."""
    held = json.loads(file.read_text(encoding="utf-8"))
    file.write_text(json.dumps(held | values), encoding="utf-8")


def configured(folder: Path, **values: object) -> Path:
    """The folder, entries of its config changed."""
    edit(folder / "config.json", **values)
    return folder


def copied(source: Path, folder: Path, **values: object) -> Path:
    """A copy of a model, entries of its config changed."""
    return configured(Path(shutil.copytree(source, folder)), **values)


def change(
    folder: Path, config: dict[str, object], tensors: dict[str, Tensor | None]
) -> None:
    """Replace fields of the config and tensors of a model; None removes a tensor."""
    configured(folder, **config)
    weights = load_file(folder / "model.safetensors") | tensors
    weights = {name: tensor for name, tensor in weights.items() if tensor is not None}
    save_file(weights, folder / "model.safetensors")


def install(folder: Path, name: str, module: str, entries: str) -> str:
    """Write a distribution into a folder of sys.path; return its module."""
    module_name = f"{name}_{abs(hash(str(folder)))}"
    (folder / f"{module_name}.py").write_text(module)
    about = folder / f"{name}-1.0.dist-info"
    about.mkdir()
    title = name.replace("_", "-")
    metadata = f"Metadata-Version: 2.1\nName: {title}\nVersion: 1.0\n"
    (about / "METADATA").write_text(metadata)
    (about / "entry_points.txt").write_text(entries.format(name=module_name))
    return module_name


def module_at(path: Path, name: str) -> ModuleType:
    """Return the module of this name that a file outside of packages holds."""
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    return module
