"""Export of drafters to other engines: written, read back and compared first."""

import shlex
from collections.abc import Callable
from dataclasses import dataclass
from importlib import import_module
from operator import attrgetter
from pathlib import Path
from tempfile import TemporaryDirectory

import torch

from foreword.draft import default_method
from foreword.draft.heads.export_layout import ENGINES as OF_FOLDERS
from foreword.draft.heads.export_layout import FOLDER, TARGET, ExportLayout
from foreword.errors import InvalidRequest, ModelError, words
from foreword.files import atomic_folder
from foreword.model.head_layers import HFConfig
from foreword.model.loading.checkpoint import Checkpoint
from foreword.model.loading.config import read_config
from foreword_train.gguf.drafts import LLAMA_CPP
from foreword_train.registry import TRAIN_OPTIONS

ENGINES = (*OF_FOLDERS, LLAMA_CPP)
"""Engines to export for."""
Pack = Callable[[Checkpoint, HFConfig, str], ExportLayout]
"""(checkpoint, target's config, engine) -> layout, or InvalidRequest or ModelError."""


@dataclass(frozen=True, slots=True)
class Exported:
    """Result of an export."""

    folder: Path
    method: str
    tensors: int
    command: str
    """Command that starts the engine with it."""


def export(source: str | Path, target: str | Path, engine: str, out: Path) -> Exported:
    """Write the drafter in `source` for another engine; `out` appears once it is
    complete and was read back.

    source, target: folders or hub ids. Raises InvalidRequest for an engine that does
    not exist or cannot serve such a drafter, and where `out` exists already; ModelError
    for a drafter that is incomplete or of another target.
    """
    if engine not in ENGINES:
        raise InvalidRequest(
            f"cannot export for engine {engine!r}: it is not supported. Choose "
            f"{', '.join(ENGINES)}"
        )
    method = default_method(source)
    pack, config = _pack(method, source, engine), _config(target)
    with atomic_folder(out) as partial:
        layout = pack(Checkpoint.read(source), config, engine)
        layout.write(partial)
        if engine != LLAMA_CPP:  # it reads files back itself
            _check(partial, layout, pack, config, engine)
    start = [
        word.replace(TARGET, str(target)).replace(FOLDER, str(out.resolve()))
        for word in layout.start
    ]
    return Exported(out, method, len(layout.names), shlex.join(start))


def _pack(method: str, source: str | Path, engine: str) -> Pack:
    options = next((one for one in TRAIN_OPTIONS if one.method == method), None)
    pack = options and (options.gguf if engine == LLAMA_CPP else options.pack)
    if not pack:
        raise InvalidRequest(
            f"cannot export {source} for {engine}: it has no method {method}. Serve it "
            "with foreword"
        )
    module, _, name = pack.partition(":")
    return attrgetter(name)(import_module(module))


def _config(target: str | Path) -> HFConfig:
    try:
        config = read_config(target)
    except ModelError as error:
        raise ModelError(
            f"cannot read the config of {str(target)!r}: {words(error)}. Give the "
            "target of the drafter"
        ) from error
    config.name_or_path = config.name_or_path or str(target)  # a GGUF file has none
    return config


def _check(
    folder: Path, layout: ExportLayout, pack: Pack, config: HFConfig, engine: str
) -> None:
    """Raise ModelError unless the folder holds the tensors that the engine expects, and
    packs to the same again.
    """
    checkpoint = Checkpoint.read(folder)
    if checkpoint.tensors.keys() != layout.names:
        wrong = ", ".join(sorted(checkpoint.tensors.keys() ^ layout.names))
        raise ModelError(
            f"cannot export for {engine}: missing or unexpected tensors {wrong}. "
            "Nothing was kept; report this as a bug"
        )
    with TemporaryDirectory(dir=folder.parent) as written:
        pack(checkpoint, config, engine).write(Path(written))
        again = Checkpoint.read(written)
    if again.config != checkpoint.config or any(
        not torch.equal(tensor, again.tensors[name])
        for name, tensor in checkpoint.tensors.items()
    ):
        raise ModelError(
            f"cannot export for {engine}: the drafter differs when read back. Nothing "
            "was kept; report this as a bug"
        )
