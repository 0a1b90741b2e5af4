"""Catalog of models that a server loads by name: a TOML file, or a folder of models."""

import json
import re
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from difflib import get_close_matches
from pathlib import Path
from typing import Any

from foreword.errors import InvalidRequest, words
from foreword.files import model_name, part_names
from foreword.options import DraftingOptions, ModelOptions, SchedulingOptions
from foreword.settings_file import BUNDLED

NAME = re.compile(r"[\w][\w./-]{0,127}")
"""Names of models: no colon, which a drafting method follows."""
WEIGHTS = ("*.safetensors", "*.bin", "*.gguf")
CONFIG = "config.json"
ADAPTER = "adapter_config.json"
OWN = ("model", "replicas", "keep", "adapters", "draft")
"""Keys of a model beside options of LLM."""
OPTIONS = frozenset(
    one.name
    for kind in (ModelOptions, DraftingOptions, SchedulingOptions)
    for one in fields(kind)
) | {"generation_config"}
KINDS: Mapping[str, tuple[type, ...]] = {
    "model": (str,),
    "draft": (str,),
    "replicas": (int,),
    "keep": (bool,),
    "adapters": (dict,),
    "generation_config": (str, dict),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """A model that can be loaded."""

    name: str
    model: str
    """Folder, file or hub id."""
    options: dict[str, Any] = field(default_factory=dict)
    """Keyword arguments of LLM."""
    replicas: int = 1
    keep: bool = False
    """Whether it is loaded at the start, and stays."""

    @property
    def source(self) -> str | None:
        """What LLM loads; None is the bundled model."""
        return None if self.model == BUNDLED else self.model

    @property
    def names(self) -> list[str]:
        """Name of the model, then the names of its adapters."""
        return [self.name, *(self.options.get("adapters") or {})]

    @property
    def bytes(self) -> int:
        """Size of its files; 0 where they are not on this machine yet."""
        draft = self.options.get("draft")
        paths = [self.model, *([draft] if isinstance(draft, str) else [])]
        return sum(map(_size, paths))


@dataclass(frozen=True, slots=True, kw_only=True)
class Catalog:
    """Models that are loaded by name, and how many at a time."""

    entries: Sequence[Entry]
    memory: int | None = None
    """Bytes for all that are loaded. None: most of the machine's."""
    sharers: int = 1
    """Servers on the machine that each have such models."""
    unused: float
    """Seconds after which one is unloaded; 0: never."""
    seconds: float
    """Most until one is ready."""


def read_catalog(path: Path, defaults: Mapping[str, Any]) -> list[Entry]:
    """Return the models of a file or folder.

    `defaults`: options of all, which an entry may change. Raises InvalidRequest for
    what cannot be read.
    """
    entries = _in_folder(path) if path.is_dir() else _in_file(path)
    models = [
        replace(entry, options={**defaults, **entry.options}) for entry in entries
    ]
    if not models:
        raise InvalidRequest(
            f"cannot serve the models of {path}: there are none. Add a folder with "
            "config.json, or a GGUF file"
            if path.is_dir()
            else f"cannot serve the models of {path}: there are none. Add a table "
            "[models.NAME]"
        )
    names = [name for entry in models for name in entry.names]
    twice = next((name for name in names if names.count(name) > 1), None)
    if twice:
        raise InvalidRequest(
            f"cannot serve the models of {path}: two are named {twice!r}. Rename one"
        )
    return models


# ---- folders


def _in_folder(folder: Path) -> Iterator[Entry]:
    """Yield a model for each folder with a config and for each GGUF file; adapters
    belong to the model that they name.
    """
    paths = sorted(folder.iterdir())
    adapters = [one for one in paths if (one / ADAPTER).is_file()]
    for path in paths:
        if path in adapters:
            continue
        if path.name in part_names(path.name)[1:]:
            continue  # the first part stands for all
        if (path / CONFIG).is_file() or path.suffix == ".gguf":
            folders = {
                adapter.name: str(adapter)
                for adapter in adapters
                if _base(adapter) == path.name
            }
            options = {"adapters": folders} if folders else {}
            name = path.name if path.is_dir() else model_name(path.name)
            yield Entry(name=name, model=str(path), options=options)


def _base(adapter: Path) -> str:
    """Return the last part of the name of an adapter's model."""
    try:
        config = json.loads((adapter / ADAPTER).read_text("utf-8"))
        return Path(config["base_model_name_or_path"]).name
    except (OSError, ValueError, TypeError, KeyError) as error:
        raise InvalidRequest(
            f"cannot read {adapter / ADAPTER}: it names no model. Save the adapter "
            "with PEFT again"
        ) from error


# ---- a file


def _in_file(path: Path) -> Iterator[Entry]:
    try:
        values = tomllib.loads(path.read_text("utf-8"))
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        reason = words(error) if isinstance(error, OSError) else str(error)
        raise InvalidRequest(
            f"cannot read models from {path}: {reason}. Give a folder, or a file of "
            "TOML with tables [models.NAME]"
        ) from error
    models = values.pop("models", {})
    if not isinstance(models, dict):
        raise InvalidRequest(
            f"cannot read models from {path}: 'models' is a value. Write [models.NAME]"
        )
    _check(path, "the file", values)
    for name, table in models.items():
        if not isinstance(table, dict):
            table = {"model": table}
        yield _entry(path, name, {**values, **table})


def _entry(path: Path, name: str, table: dict[str, Any]) -> Entry:
    where = f"[models.{name}]"
    _check(path, where, table)
    if not NAME.fullmatch(name):
        raise InvalidRequest(
            f"cannot read {where} of {path}: the name may hold letters, digits and "
            "'-', '_', '.', '/'. Choose another"
        )
    if "model" not in table:
        raise InvalidRequest(
            f"cannot read {where} of {path}: it has no 'model'. Give a folder, a "
            "GGUF file or a hub id"
        )
    _check_there(path, where, table["model"])
    options = {key: value for key, value in table.items() if key not in OWN}
    for key in ("draft", "adapters"):
        if key in table:
            options[key] = beside(path, table[key])
    return Entry(
        name=name,
        model=beside(path, table["model"]),
        options=options,
        replicas=table.get("replicas", 1),
        keep=table.get("keep", False),
    )


def _check_there(path: Path, where: str, model: str) -> None:
    """Raise InvalidRequest for a path that does not exist."""
    is_path = model.startswith((".", "/", "~")) or model.endswith(".gguf")
    if is_path and not (path.parent / Path(model).expanduser()).exists():
        raise InvalidRequest(
            f"cannot read {where} of {path}: {model!r} does not exist. Give a folder, "
            "a GGUF file or a hub id"
        )


def beside(path: Path, value: Any) -> Any:
    """Return paths as they are meant: beside the file that names them."""
    if isinstance(value, dict):
        return {name: beside(path, one) for name, one in value.items()}
    near = path.parent / Path(str(value)).expanduser()
    return str(near) if near.exists() else value


def _check(path: Path, where: str, table: dict[str, Any]) -> None:
    """Raise InvalidRequest for keys and values that no model has."""
    known = {*OWN, *OPTIONS}
    for key, value in table.items():
        if key not in known:
            near = get_close_matches(key, known, 1)
            hint = f"Did you mean {near[0]!r}?" if near else "Leave it out"
            raise InvalidRequest(
                f"cannot read {where} of {path}: {key!r} is not known. {hint}"
            )
        kinds = KINDS.get(key)
        if kinds and not isinstance(value, kinds):
            raise InvalidRequest(
                f"cannot read {where} of {path}: {key!r} must be "
                f"{kinds[0].__name__}, got {value!r}"
            )
    if isinstance(table.get("replicas"), int) and table["replicas"] < 1:
        raise InvalidRequest(
            f"cannot read {where} of {path}: 'replicas' must be 1 or more"
        )
    for kind in (ModelOptions, DraftingOptions):
        names = {one.name for one in fields(kind)}
        kind(**{key: value for key, value in table.items() if key in names})


def _size(name: str) -> int:
    path = Path(name)
    if path.is_file():
        parts = map(path.with_name, part_names(path.name))
        return sum(part.stat().st_size for part in parts if part.is_file())
    folder = path if path.is_dir() else _cached(name)
    for pattern in WEIGHTS:
        if sizes := [one.stat().st_size for one in folder.glob(pattern)]:
            return sum(sizes)
    return 0


def _cached(name: str) -> Path:
    """Return the folder of a hub id in the cache of this machine, if it is there."""
    from huggingface_hub import snapshot_download  # seldom needed

    try:
        return Path(snapshot_download(name, local_files_only=True))
    except (OSError, ValueError):
        return Path(name)
