"""Drafters for other engines: written, read again and compared before the folder appears.

Knows which method a folder serves and where its layouts are; knows nothing about any layout.
"""

from __future__ import annotations

import shlex
from collections.abc import Callable
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from tempfile import TemporaryDirectory

import torch

from foreword.disk import appearing
from foreword.draft import usual
from foreword.draft.parcel import ENGINES, FOLDER, TARGET, Parcel
from foreword.errors import InvalidRequest, ModelError, words
from foreword.model.checkpoint import Checkpoint
from foreword.model.config import read_config
from foreword.model.parts import HFConfig
from foreword.train.students import STUDENTS

Pack = Callable[[Checkpoint, HFConfig, str], Parcel]
"""(what there is, the target's config, the engine) -> what the engine gets. Raises InvalidRequest or ModelError."""


@dataclass(frozen=True, slots=True)
class Exported:
    """What was written."""

    folder: Path
    method: str
    tensors: int
    command: str
    """How the engine is started with it."""


def export(source: str | Path, target: str | Path, engine: str, out: Path) -> Exported:
    """Write the drafter in `source` for another engine; `out` appears when it is complete and was read again.

    source, target: folders or hub ids. Raises InvalidRequest for an engine that does not exist or cannot serve such a
    drafter, and where `out` is there already; ModelError for a drafter that is incomplete or of another target.
    """
    if engine not in ENGINES:
        raise InvalidRequest(f"there is no engine {engine!r} to write for; choose one of {', '.join(ENGINES)}")
    method = usual(source)
    pack, config = _pack(method, source, engine), _config(target)
    with appearing(out) as begun:
        parcel = pack(Checkpoint.read(source), config, engine)
        parcel.write(begun)
        _check(begun, parcel, pack, config, engine)
    start = [word.replace(TARGET, str(target)).replace(FOLDER, str(out.resolve())) for word in parcel.start]
    return Exported(out, method, len(parcel.names), shlex.join(start))


def _pack(method: str, source: str | Path, engine: str) -> Pack:
    student = next((one for one in STUDENTS if one.method == method), None)
    if student is None or student.pack is None:
        raise InvalidRequest(f"{source} is for the method {method}, which {engine} does not have; only we serve it")
    module, _, name = student.pack.partition(":")
    return getattr(import_module(module), name)


def _config(target: str | Path) -> HFConfig:
    try:
        return read_config(target)
    except ModelError as error:
        raise ModelError(
            f"cannot read the config of {str(target)!r}: {words(error)}. Give the target that it was made for"
        ) from error


def _check(folder: Path, parcel: Parcel, pack: Pack, config: HFConfig, engine: str) -> None:
    """Raises ModelError unless the folder holds what the engine looks for, and says the same when it is read."""
    found = Checkpoint.read(folder)
    if found.tensors.keys() != parcel.names:
        wrong = ", ".join(sorted(found.tensors.keys() ^ parcel.names))
        raise ModelError(f"what was written for {engine} is not what it looks for: {wrong}. Nothing was kept")
    with TemporaryDirectory(dir=folder.parent) as written:
        pack(found, config, engine).write(Path(written))
        again = Checkpoint.read(written)
    if again.config != found.config or any(
        not torch.equal(tensor, again.tensors[name]) for name, tensor in found.tensors.items()
    ):
        raise ModelError(f"what was written for {engine} reads as something else; nothing was kept")
