"""Checks weights against a config: none missing, none extra, right shapes, finite."""

import re
from collections.abc import Callable, Collection, Iterable, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel
from transformers.pytorch_utils import Conv1D

from foreword.errors import ModelError
from foreword.model.layers import layer_count
from foreword.native.openmp import one_thread
from foreword.registry import AHEAD_TENSORS

WEIGHTS, INDEX = "model.safetensors", "model.safetensors.index.json"
APART = re.compile(
    r"(^|\.)(vision|visual|image|video|audio|speech|multi_?modal|mm|connector|vit|"
    rf"{AHEAD_TENSORS})(_\w*)?\."
    r"|\.rotary_emb\.\w*inv_freq$|\.(attn|attention)\.(masked_)?bias$|(^|\.)position_ids$"
)
"""Names of tensors that the language model does not use: vision, audio and multi-token
heads, and tables that older versions of transformers saved and newer ones compute."""
LAYER = re.compile(r"(?:^|\.)layers\.(\d+)\.")
"""Number of a layer in the name of a tensor."""
NAMED = 3
"""Tensors. An error names this many and counts the others."""


def check_names(
    source: str,
    missing: Iterable[str],
    unexpected: Iterable[str],
    mismatched: Iterable[tuple[str, Any, Any]] = (),
) -> None:
    """Raise ModelError, with names, if tensors are missing, unexpected or misshapen."""
    faults = [f"it lacks {listed(missing)}"] if (missing := sorted(missing)) else []
    if unexpected := sorted(unexpected):
        faults.append(
            f"it holds {listed(unexpected)}, which its config has no place for"
        )
    shapes = [
        f"{name} has the shape {list(shape)}, not {list(expected)}"
        for name, shape, expected in sorted(mismatched)
    ]
    if shapes:
        faults.append(listed(shapes))
    if faults:
        raise ModelError(
            f"cannot load the weights of {source!r}: {'; '.join(faults)}. The file is "
            "incomplete, or config.json belongs to another model. Download both again"
        )


def check_loaded(source: str, model: PreTrainedModel, info: Mapping[str, Any]) -> None:
    """Run `check_names` on the loading `info` of transformers, for the language model
    of a checkpoint only.
    """
    text = _text(model)
    missing = [name for name in info["missing_keys"] if _reads_text(model, name, text)]
    unexpected = [
        name
        for name in info["unexpected_keys"]
        if not APART.search(name) and not _predicts_ahead(model, name)
    ]
    mismatched = [
        one for one in info["mismatched_keys"] if _reads_text(model, one[0], text)
    ]
    check_names(source, missing, unexpected, mismatched)


@one_thread()  # others would spin in between, which takes longer than the looks do
def check_finite(
    source: str, tensors: Mapping[str, Tensor], matrices: Collection[str] = ()
) -> None:
    """Raise ModelError that names a tensor with NaN or infinite values, or one of the
    `matrices` that is all zeros.

    A download that was cut off, or whose parts are missing, may leave zeros in a file
    of the right size. Biases, norms and rows of zeros are usual.
    """
    for name, tensor in tensors.items():
        if tensor.is_meta or not tensor.is_floating_point() or not tensor.numel():
            continue
        few = tensor.element_size() == 1  # torch compares no such numbers
        least, most = torch.aminmax(tensor.float() if few else tensor)
        if name in matrices and least == most == 0:
            raise ModelError(
                f"cannot use the weights of {source!r}: all numbers of {name} are "
                "zero, so the file is incomplete. Download it again; or, if it is "
                "meant so, load the model with transformers and give that"
            )
        if not torch.isfinite(least) or not torch.isfinite(most):  # NaN is both
            kind = str(tensor.dtype).removeprefix("torch.")
            raise ModelError(
                f"cannot use the weights of {source!r}: {name} holds NaN or infinite "
                f"numbers in {kind}. The file is damaged, or its values need another "
                "dtype. Download it again, or use dtype='float32'"
            )


def weights(model: nn.Module) -> dict[str, Tensor]:
    """Return all tensors of a model's state dict, shared ones once."""
    unique: dict[int, tuple[str, Tensor]] = {}
    for name, tensor in model.state_dict().items():
        if isinstance(tensor, Tensor):
            here = own_part(tensor)
            unique.setdefault(here.data_ptr() or id(here), (name, here))
    return dict(unique.values())


def own_part(tensor: Tensor) -> Tensor:
    """Return a tensor; of one that is split among processes, the part of this one."""
    to_local: Callable[[], Tensor] | None = getattr(tensor, "to_local", None)
    return tensor if to_local is None else to_local()


def matrices(model: PreTrainedModel) -> set[str]:
    """Return the names of the weights of linear layers and of input embeddings; none
    for a model that its config calls inflated, whose added layers write zeros.
    """
    if getattr(model.config, "inflated", False):
        return set()
    words = model.get_input_embeddings()
    parts = model.named_modules()
    return {
        f"{name}.weight"
        for name, part in parts
        if part is words or isinstance(part, nn.Linear | Conv1D)
    }


def check_index(source: str | Path, index: Mapping[str, Any] | None) -> None:
    """Raise ModelError if a folder's index is damaged, or names a missing file."""
    if index is None:
        return
    files = index.get("weight_map")
    if not isinstance(files, dict) or not all(
        isinstance(name, str) for name in files.values()
    ):
        raise ModelError(
            f"cannot load the weights of {str(source)!r}: {INDEX} names no files. Copy "
            "the file again"
        )
    folder = Path(source).expanduser()
    names = sorted(set(files.values()))
    missing = [name for name in names if not (folder / name).is_file()]
    if missing and folder.is_dir():
        raise ModelError(
            f"cannot load the weights of {str(source)!r}: {INDEX} names "
            f"{listed(missing)}, which does not exist. Copy all files of the model"
        )


def listed(names: Iterable[str]) -> str:
    """Return the first NAMED names, and the number of others."""
    names = list(names)
    more = f" and {len(names) - NAMED} more" if len(names) > NAMED else ""
    return ", ".join(names[:NAMED]) + more


def _text(model: PreTrainedModel) -> set[int] | None:
    """Return the ids of the language model's tensors, where a model has other parts;
    None = all of them.
    """
    if not hasattr(model.config, "text_config"):
        return None
    parts = [model.get_decoder(), model.get_output_embeddings()]
    present = [part for part in parts if part is not None]
    return {
        id(tensor)
        for part in present
        for tensor in (*part.parameters(), *part.buffers())
    }


def _predicts_ahead(model: PreTrainedModel, name: str) -> bool:
    """Return whether a tensor is part of a multi-token-prediction layer: those have the
    numbers after the model's own layers, as many as the config says.
    """
    config = model.config.get_text_config()
    match = LAYER.search(name)
    ahead = getattr(config, "num_nextn_predict_layers", None)
    if match is None or not isinstance(ahead, int):
        return False
    first = layer_count(config)
    return first <= int(match[1]) < first + ahead


def _reads_text(model: PreTrainedModel, name: str, text: set[int] | None) -> bool:
    if text is None:
        return True
    try:
        return id(model.get_parameter_or_buffer(name)) in text
    except AttributeError:
        return True
