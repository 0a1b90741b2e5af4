"""Inflation of a T5: a model with the answers of a small one and the cost of a large
one, to measure speed with.
"""

from __future__ import annotations

import copy
import math
from dataclasses import dataclass
from itertools import zip_longest
from typing import Any

import torch
from torch import nn
from transformers import PreTrainedModel, T5Config, T5ForConditionalGeneration

from foreword.errors import ModelError


@dataclass(frozen=True, slots=True)
class T5Shape:
    """Sizes of a T5.

    Heads keep the size that they have in the inflated model, as the vocabulary does.
    """

    name: str
    hidden: int
    layers: int
    """Layers of the encoder, and of the decoder."""
    intermediate: int


T5_SHAPES = {
    shape.name: shape
    for shape in (T5Shape("t5-350m", hidden=1024, layers=12, intermediate=2816),)
}


def inflate_t5(
    model: PreTrainedModel, shape: T5Shape, *, seed: int = 0
) -> T5ForConditionalGeneration:
    """Enlarge `model` to `shape` without changing what it computes, as
    foreword.bench.inflate.model does for a Llama.

    Matrices that read the residual stream are padded with random numbers, matrices that
    write to it with zeros. The added layers, at the end of encoder and decoder, add 0.
    Where outputs are scaled by the hidden size, the decoder's last norm undoes it.

    Returns: a new model in the dtype and mode of `model`, on the CPU, the vocabulary
    and any tying unchanged.

    Raises ModelError when the model is not a T5 with gated activations, or does not fit
    into the shape.
    """
    config: Any = model.config
    if not isinstance(model, T5ForConditionalGeneration) or not config.is_gated_act:
        raise ModelError(
            f"cannot inflate a {type(model).__name__} to {shape.name}: it is not a T5 "
            "with gated activations. Choose one"
        )
    before = (
        config.d_model,
        max(config.num_layers, config.num_decoder_layers),
        config.d_ff,
    )
    if any(
        new < old
        for new, old in zip(
            (shape.hidden, shape.layers, shape.intermediate), before, strict=True
        )
    ) or (config.num_heads * config.d_kv > shape.hidden or shape.hidden % config.d_kv):
        raise ModelError(
            f"cannot inflate to {shape.name}: the model is larger, or its heads do not "
            "fit in evenly"
        )
    large = _random(model, shape, seed)
    ratio = config.d_model / shape.hidden
    with torch.no_grad():
        _corner(large.shared.weight, model.shared.weight)
        if model.lm_head.weight is not model.shared.weight:  # whatever the config says
            large.lm_head.weight = nn.Parameter(torch.randn_like(large.lm_head.weight))
            large.lm_head.weight[:, : config.d_model] = model.lm_head.weight
        for new, old in (
            (large.encoder, model.encoder),
            (large.decoder, model.decoder),
        ):
            _scale(new.final_layer_norm, old.final_layer_norm, math.sqrt(ratio))
            for wide, narrow in zip_longest(new.block, old.block):
                _fill(wide, narrow, math.sqrt(ratio))
        if config.scale_decoder_outputs:
            large.decoder.final_layer_norm.weight.div_(math.sqrt(ratio))
    return large


def _random(
    model: T5ForConditionalGeneration, shape: T5Shape, seed: int
) -> T5ForConditionalGeneration:
    """Return a randomly initialised model of the new shape; the caller's random state
    is unchanged.
    """
    config: T5Config = copy.deepcopy(model.config)
    config.d_model, config.d_ff = shape.hidden, shape.intermediate
    config.num_layers = config.num_decoder_layers = shape.layers
    config.num_heads = shape.hidden // config.d_kv
    config.layer_norm_epsilon = (
        model.config.layer_norm_epsilon * model.config.d_model / shape.hidden
    )
    config.inflated = True  # a loader lets its zeros pass
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(seed)
        large = T5ForConditionalGeneration._from_config(config, dtype=model.dtype)
    large.generation_config = copy.deepcopy(model.generation_config)
    return large.train(model.training)


def _fill(new: Any, old: Any | None, scale: float) -> None:
    """Copy the layer `old` into the corner of `new`; None makes a layer that computes
    at full cost and adds 0.
    """
    for place, part in enumerate(new.layer):
        writers = [
            module
            for name, module in part.named_modules()
            if name.rpartition(".")[2] in ("o", "wo")
        ]
        for writer in writers:
            nn.init.zeros_(writer.weight)
        if old is None:
            continue
        _scale(part.layer_norm, old.layer[place].layer_norm, scale)
        for name, module in old.layer[place].named_modules():
            if isinstance(module, nn.Linear | nn.Embedding):
                rows, columns = module.weight.shape
                part.get_submodule(name).weight[:rows, :columns] = module.weight


def _corner(new: torch.Tensor, old: torch.Tensor) -> None:
    new.zero_()
    new[: old.shape[0], : old.shape[1]] = old


def _scale(new: Any, old: Any, factor: float) -> None:
    """Undo what the added zero channels do to the root mean square."""
    nn.init.ones_(new.weight)
    new.weight[: len(old.weight)] = old.weight * factor
