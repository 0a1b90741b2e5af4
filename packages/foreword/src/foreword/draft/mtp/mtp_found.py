"""Whether a target brings layers of multi-token prediction that can draft."""

import warnings
from pathlib import Path
from typing import Any

from foreword.draft.mtp.mtp_layouts import layout_of
from foreword.errors import ModelError
from foreword.model import Model
from foreword.model.loading.ahead import buildable
from foreword.model.loading.beside import tensor_names
from foreword.model.loading.checkpoint import CONFIG
from foreword.model.loading.complete import INDEX
from foreword.model.loading.config import read_json

COUNTS = ("num_nextn_predict_layers", "mtp_num_hidden_layers", "num_mtp_layers")
"""Names of the number of such layers in a config."""


def brings_layers(target: object) -> bool:
    """Return whether the checkpoint of a target holds such layers.

    `target`: a folder or hub id, a model in memory, or None. Warns where the installed
    transformers cannot build them.
    """
    source = _source(target)
    if not source or not _named(source):
        return False
    if not buildable():
        warnings.warn(
            f"{source} brings layers of multi-token prediction, which transformers "
            "builds from version 5.23 on; they are not used",
            stacklevel=4,
        )
        return False
    return True


def _named(source: str | Path) -> bool:
    """Return whether a config announces such layers, and the files hold them."""
    try:
        config = read_json(source, CONFIG) or {}
        text: Any = config.get("text_config") or config
        layers = text.get("num_hidden_layers")
        announced = any(text.get(name) for name in COUNTS)
        # names cost little where they are in an index
        if not announced and read_json(source, INDEX) is None:
            return False
    except (OSError, ModelError, AttributeError):
        return False
    names = tensor_names(source)
    return isinstance(layers, int) and layout_of(names, layers) is not None


def _source(target: object) -> str | Path | None:
    """Return where the checkpoint of a target is; None where that is unknown."""
    if isinstance(target, str | Path):
        return target
    hf = target.hf if isinstance(target, Model) else target
    name = getattr(getattr(hf, "config", None), "name_or_path", None)
    return name or None
