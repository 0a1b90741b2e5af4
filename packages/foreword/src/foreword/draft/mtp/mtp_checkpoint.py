"""Loads layers of multi-token prediction from a target's own checkpoint, or from a
folder that `foreword train mtp` wrote.
"""

from dataclasses import replace
from functools import partial
from pathlib import Path

import torch
from torch import Tensor

from foreword.draft.heads.loading import check_sizes, saved
from foreword.draft.mtp.mtp_head import MtpHead
from foreword.draft.mtp.mtp_layouts import SHARED_NORM, layout_of, unread
from foreword.errors import ModelError
from foreword.model import HFModel
from foreword.model.head_layers import HFConfig
from foreword.model.layers import layer_count
from foreword.model.loading.ahead import Kinds, fill, layers_ahead
from foreword.model.loading.beside import read_beside, tensor_names
from foreword.model.loading.checkpoint import CONFIG, Checkpoint
from foreword.model.loading.config import read_json
from foreword.model.loading.sizes import check_total

KIND = "MtpModel"
"""Architecture in the config of a folder that holds only such layers."""
SIZES = ("hidden_size", "vocab_size")
LAYERS = "num_target_layers"
"""Entries of its config that must be the target's; the last is its number of layers."""


def available(source: str | Path, layers: int) -> bool:
    """Return whether a checkpoint holds such layers, for a target of so many layers.

    Only names are read: a config may count layers that its files do not hold.
    """
    return layout_of(tensor_names(source), layers) is not None


def load(
    source: str | Path,
    hf: HFModel,
    dtype: torch.dtype,
) -> MtpHead:
    """Load a checkpoint's layers for a target, or raise ModelError."""
    _check_target(source, hf.config.get_text_config())
    names = tensor_names(source)
    depth = layer_count(hf.config)
    layout = layout_of(names, depth)
    if layout is None:
        why = unread(names) or "it holds no layers of multi-token prediction"
        raise ModelError(
            f"cannot load the multi-token prediction of {source}: {why}. Use another "
            "method, or train such a layer with foreword train mtp"
        )
    ours = partial(layout.ours, layers=depth)
    stored = read_beside(source, ours, dtype)
    tensors = {str(ours(name)): part for name, part in stored.items()}
    count = 1 + max(int(name.split(".")[1]) for name in tensors if name != SHARED_NORM)
    layers = layers_ahead(hf, layout.kinds, count)
    head = MtpHead(layers)
    size = sum(tensor.nbytes for tensor in stored.values())
    check_total(str(source), head, size)
    fill(layers, tensors, hf, dtype, str(source))
    return head.to(dtype)


def new(hf: HFModel) -> MtpHead:
    """Return one layer without storage for a target of any kind."""
    return MtpHead(layers_ahead(hf, Kinds(), 1))


def dump(
    head: MtpHead,
    dtype: torch.dtype,
    config: HFConfig,
) -> Checkpoint:
    """Return a single layer in DeepSeek's layout, numbered after the target's layers;
    experts are fused as in transformers.
    """
    text = config.get_text_config()
    about = {
        "architectures": [KIND],
        "model_type": text.model_type,
        **_sizes(text),
        "num_nextn_predict_layers": 1,
    }
    layer = f"model.layers.{layer_count(text)}"
    ours = saved(head.layers[0], about, dtype)
    tensors: dict[str, Tensor] = {}
    for name, tensor in ours.tensors.items():
        rest = name.removeprefix("mtp_block.")
        rest = rest.replace("post_norm", "shared_head.norm")
        tensors[f"{layer}.{rest}"] = tensor
    return replace(ours, tensors=tensors)


def _sizes(config: HFConfig) -> dict[str, int]:
    """Return the sizes of a target that its layers depend on."""
    sizes = {name: getattr(config, name) for name in SIZES}
    return {**sizes, LAYERS: layer_count(config)}


def _check_target(source: str | Path, config: HFConfig) -> None:
    """Raise ModelError where a folder of its own was trained for another target."""
    about = read_json(source, CONFIG) or {}
    if KIND not in (about.get("architectures") or ()):
        return
    sizes = {name: (about.get(name), size) for name, size in _sizes(config).items()}
    check_sizes(source, config, sizes)
