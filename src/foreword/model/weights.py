"""Provides trainable copies of a running model's weights, their replacement, and
saving, for every backend.
"""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import torch
from torch import nn
from transformers import PreTrainedModel

from foreword.errors import ModelError
from foreword.files import atomic_folder
from foreword.model.executors.native.backend import NativeBackend
from foreword.model.executors.torch.packed_linear import PackedLinear, own_form
from foreword.model.model import Model
from foreword.model.tokenizer import Tokenizer


@torch.no_grad()
def copied(model: Model) -> PreTrainedModel:
    """Return a separate model with the same weights, in float32 on the same device, on
    no backend.

    Raises ModelError where a backend holds weights in a form that cannot be read back.
    """
    config = copy.deepcopy(model.hf.config)
    attention = "sdpa" if getattr(model.hf, "_supports_sdpa", False) else "eager"
    # weights are initialized randomly first; keep the caller's random state
    with torch.random.fork_rng(devices=[]):
        twin: Any = type(model.hf)._from_config(
            config,
            dtype=torch.float32,
            attn_implementation=attention,
        )
    nn.Module.to(twin, model.device)
    filled: set[str] = set()
    if isinstance(model.backend, NativeBackend):
        initial = dict(twin.named_parameters(remove_duplicate=False))
        model.backend.restore(twin)  # all matrices, in bfloat16
        restored = twin.named_parameters(remove_duplicate=False)
        filled |= {name for name, weight in restored if weight is not initial[name]}
        nn.Module.float(twin)
    for name, layer in model.hf.named_modules():
        if isinstance(layer, PackedLinear):
            own_form(twin.get_submodule(name)).copy_(layer.dense)
            filled.add(f"{name}.weight")
    target = twin.state_dict()
    for name, tensor in model.hf.state_dict().items():
        if name in filled or name not in target:
            continue
        if target[name].shape == tensor.shape:
            target[name].copy_(tensor)
            filled.add(name)
    missing = sorted(set(target) - filled)
    if missing:
        raise ModelError(
            f"cannot read back the weights of {model.name}: backend "
            f"'{model.capability.backend}' does not hold {missing[0]}. Load the model "
            "again"
        )
    return twin.eval().requires_grad_(True)


@torch.no_grad()
def replace(model: Model, by: PreTrainedModel) -> None:
    """Overwrite a model's weights with the weights of another model of its
    architecture, in its own dtype.

    The memory stays the same, so existing pointers remain valid. Keys and values that
    were computed already stay.
    """
    source: Any = by
    target = model.hf.state_dict()
    for name, tensor in source.state_dict().items():
        if target[name].shape == tensor.shape:
            target[name].copy_(tensor)
    for name, layer in model.hf.named_modules():
        if isinstance(layer, PackedLinear):
            layer.refill(own_form(source.get_submodule(name)).to(model.dtype))
    if isinstance(model.backend, NativeBackend):
        model.backend.repack(by)
    if model.backend.pool is not None:
        model.backend.pool.prefixes.clear()  # computed with the weights before


def save(
    model: Model,
    folder: Path,
    tokenizer: Tokenizer | None,
) -> None:
    """Write the weights of a model as a checkpoint of transformers, in its dtype, with
    the tokenizer if there is one.

    The folder appears complete or not at all. Raises InvalidRequest where the path
    exists already.
    """
    with atomic_folder(folder.expanduser()) as partial:
        stored: Any = nn.Module.to(copied(model), model.dtype)
        stored.generation_config = model.hf.generation_config
        stored.save_pretrained(partial)
        if tokenizer is not None:
            tokenizer.save_pretrained(partial)
