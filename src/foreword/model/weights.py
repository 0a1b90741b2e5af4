"""The weights of a model that is being driven: a copy that can learn, and others put in their place.

Knows how every driver holds weights; knows nothing about what makes them better.
"""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import torch
from torch import nn
from transformers import PreTrainedModel

from foreword.disk import appearing
from foreword.errors import ModelError
from foreword.model.linear import PackedLinear, own_form
from foreword.model.listen import layers_of
from foreword.model.model import Model
from foreword.model.names import mouth
from foreword.model.native import NativeDriver
from foreword.model.panels import around, products, vectors
from foreword.model.vocabulary import Tokenizer


@torch.no_grad()
def copied(model: Model) -> PreTrainedModel:
    """A model of its own with the same weights, in float32 on the same device, driven by nobody.

    Raises ModelError where some weights are held in a form that cannot be read back.
    """
    config = copy.deepcopy(model.hf.config)
    attention = "sdpa" if getattr(model.hf, "_supports_sdpa", False) else "eager"
    with torch.random.fork_rng(devices=[]):  # weights are drawn first, and must not use up somebody's numbers
        made: Any = type(model.hf)._from_config(config, dtype=torch.float32, attn_implementation=attention)
    nn.Module.to(made, model.device)
    filled: set[str] = set()
    if isinstance(model.driver, NativeDriver):
        drawn = dict(made.named_parameters(remove_duplicate=False))
        model.driver.restore(made)  # all that is multiplied with, in bfloat16
        given = made.named_parameters(remove_duplicate=False)
        filled |= {name for name, weight in given if weight is not drawn[name]}
        nn.Module.float(made)
    for name, layer in model.hf.named_modules():
        if isinstance(layer, PackedLinear):
            own_form(made.get_submodule(name)).copy_(layer.dense)
            filled.add(f"{name}.weight")
    own = made.state_dict()
    for name, tensor in model.hf.state_dict().items():
        if name not in filled and name in own and own[name].shape == tensor.shape:
            own[name].copy_(tensor)
            filled.add(name)
    missing = sorted(set(own) - filled)
    if missing:
        raise ModelError(f"the weights of {model.name} cannot be read back from how it is driven: {missing[0]}")
    return made.eval().requires_grad_(True)


@torch.no_grad()
def replace(model: Model, by: PreTrainedModel) -> None:
    """Let a model guess with the weights of another one of its kind, in its own dtype, from its next forward on.

    They are written where the old ones lie, so that whoever points to those finds them. What it has read of texts so
    far stays as the old weights understood it.
    """
    given: Any = by
    own = model.hf.state_dict()
    for name, tensor in given.state_dict().items():
        if own[name].shape == tensor.shape:
            own[name].copy_(tensor)
    for name, layer in model.hf.named_modules():
        if isinstance(layer, PackedLinear):
            layer.refill(own_form(given.get_submodule(name)).to(model.dtype))
    if isinstance(model.driver, NativeDriver):
        _repack(model.driver, by)


def save(model: Model, folder: Path, tokenizer: Tokenizer) -> None:
    """Write the weights that a model reads with as a checkpoint of transformers, in its dtype.

    The folder is there whole or not at all. Raises InvalidRequest where there is something already.
    """
    with appearing(folder.expanduser()) as begun:
        stored: Any = nn.Module.to(copied(model), model.dtype)
        stored.generation_config = model.hf.generation_config
        stored.save_pretrained(begun)
        tokenizer.save_pretrained(begun)


def _repack(driver: NativeDriver, by: PreTrainedModel) -> None:
    """The C side points to the same memory, which holds other numbers then. Embeddings are the model's, or its head."""
    described, held = driver._model, {tensor.data_ptr(): tensor for tensor in driver._held}
    pack = driver._library.foreword_pack
    for layer, places in zip(layers_of(by), described.layer[: described.layers], strict=True):
        for name, weight in products(layer).items():
            rows = weight.bfloat16().contiguous()
            pack(rows.data_ptr(), getattr(places, name), *rows.shape)
        for name, vector in vectors(layer).items():
            held[getattr(places, name)].copy_(vector)
    head = mouth(by).weight.bfloat16().contiguous()
    pack(head.data_ptr(), described.head, *head.shape)
    for name, vector in around(by).items():
        held[getattr(described, name)].copy_(vector)
