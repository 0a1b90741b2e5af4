"""Weights as a checkpoint's config asks for them: all there, none left over, in their shapes, and numbers.

Knows names and values of tensors; knows nothing about what is computed with them.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from foreword.errors import ModelError

INDEX = "model.safetensors.index.json"
APART = re.compile(
    r"(^|\.)(vision|visual|image|video|audio|speech|multi_?modal|mm|connector|vit|mtp)(_\w*)?\."
    r"|\.rotary_emb\.\w*inv_freq$|\.(attn|attention)\.(masked_)?bias$|(^|\.)position_ids$"
)
"""Tensors that no text is read with: parts for images and sound, heads for several tokens, and tables that older
versions of transformers saved and newer ones compute."""
NAMED = 3
"""Tensors. As many are named in an error; it counts the others."""


def check_names(
    source: str, missing: Iterable[str], unexpected: Iterable[str], mismatched: Iterable[tuple[str, Any, Any]] = ()
) -> None:
    """Raises ModelError that names what a checkpoint lacks, what it holds besides, and what has another shape."""
    faults = [f"it lacks {listed(missing)}"] if (missing := sorted(missing)) else []
    if unexpected := sorted(unexpected):
        faults.append(f"it holds {listed(unexpected)}, which its config has no place for")
    shapes = [f"{name} has the shape {list(found)}, not {list(wanted)}" for name, found, wanted in sorted(mismatched)]
    if shapes:
        faults.append(listed(shapes))
    if faults:
        raise ModelError(
            f"cannot load the weights of {source!r}: {'; '.join(faults)}. The file is incomplete, or config.json "
            "belongs to another model: get both again"
        )


def check_loaded(source: str, model: PreTrainedModel, info: Mapping[str, Any]) -> None:
    """The same for what transformers loaded, as it tells in `info`; where a model sees as well, for its text alone."""
    text = _text(model)
    missing = [name for name in info["missing_keys"] if _reads_text(model, name, text)]
    unexpected = [name for name in info["unexpected_keys"] if not APART.search(name)]
    mismatched = [one for one in info["mismatched_keys"] if _reads_text(model, one[0], text)]
    check_names(source, missing, unexpected, mismatched)


def check_finite(source: str, tensors: Mapping[str, Tensor]) -> None:
    """Raises ModelError that names a tensor with NaN or infinite numbers in it."""
    for name, tensor in tensors.items():
        if tensor.is_floating_point() and not tensor.is_meta and not _finite(tensor):
            kind = str(tensor.dtype).removeprefix("torch.")
            raise ModelError(
                f"cannot use the weights of {source!r}: {name} holds NaN or infinite numbers in {kind}. The file is "
                "damaged, or its numbers need another dtype: get it again, or try dtype='float32'"
            )


def weights(model: nn.Module) -> dict[str, Tensor]:
    """All tensors that are saved with a model, each once."""
    found: dict[int, tuple[str, Tensor]] = {}
    for name, tensor in model.state_dict().items():
        if isinstance(tensor, Tensor):
            found.setdefault(tensor.data_ptr() or id(tensor), (name, tensor))
    return dict(found.values())


def check_index(source: str | Path, index: Mapping[str, Any] | None) -> None:
    """Raises ModelError where the index of a folder's weights is damaged, or names a file that is not there."""
    if index is None:
        return
    places = index.get("weight_map")
    if not isinstance(places, dict) or not all(isinstance(name, str) for name in places.values()):
        raise ModelError(f"cannot load the weights of {str(source)!r}: {INDEX} names no files. Copy the file again")
    folder = Path(source).expanduser()
    if folder.is_dir() and (gone := [name for name in sorted(set(places.values())) if not (folder / name).is_file()]):
        raise ModelError(
            f"cannot load the weights of {str(source)!r}: {INDEX} names {listed(gone)}, which is not there. Copy all "
            "files of the model"
        )


def listed(names: Iterable[str]) -> str:
    """The first few, and how many more there are."""
    names = list(names)
    more = f" and {len(names) - NAMED} more" if len(names) > NAMED else ""
    return ", ".join(names[:NAMED]) + more


def _finite(tensor: Tensor) -> bool:
    """A sum is several times faster than a look at each number; only one that is not finite needs that look."""
    if tensor.element_size() == 1:
        tensor = tensor.float()
    return bool(torch.isfinite(tensor.sum())) or bool(torch.isfinite(tensor).all())


def _text(model: PreTrainedModel) -> set[int] | None:
    """What the text is read with, where a model has other parts; None = all of it."""
    if not hasattr(model.config, "text_config"):
        return None
    parts = [model.get_decoder(), model.get_output_embeddings()]
    return {id(tensor) for part in parts if part is not None for tensor in (*part.parameters(), *part.buffers())}


def _reads_text(model: PreTrainedModel, name: str, text: set[int] | None) -> bool:
    if text is None:
        return True
    try:
        return id(model.get_parameter_or_buffer(name)) in text
    except AttributeError:
        return True
