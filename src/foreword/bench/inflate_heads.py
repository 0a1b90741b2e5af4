"""Makes a trained head one of an inflated target: it guesses the same, and costs what a head of that target costs.

Knows the names of a head's tensors and what their axes are; knows nothing about what they compute.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from foreword.bench.inflate import Shape, query_slots
from foreword.draft.eagle_files import outspoken
from foreword.errors import ModelError
from foreword.model.checkpoint import Checkpoint

HIDDEN, QUERIES, KEYS, INNER, SAME = "hidden", "queries", "keys", "inner", "same"
"""What an axis counts: hidden channels, perhaps several times and with something after them; query heads; key heads;
the MLP's channels; or what does not grow."""
AXES: dict[str, tuple[str, ...]] = {
    "fc.weight": (HIDDEN, HIDDEN),
    "q_proj.weight": (QUERIES, HIDDEN),
    "k_proj.weight": (KEYS, HIDDEN),
    "v_proj.weight": (KEYS, HIDDEN),
    "o_proj.weight": (HIDDEN, QUERIES),
    "gate_proj.weight": (INNER, HIDDEN),
    "up_proj.weight": (INNER, HIDDEN),
    "down_proj.weight": (HIDDEN, INNER),
    "layernorm.weight": (HIDDEN,),
    "hidden_norm.weight": (HIDDEN,),
    "norm.weight": (HIDDEN,),
    "linear.weight": (HIDDEN, HIDDEN),
    "linear.bias": (HIDDEN,),
    "embed_tokens.weight": (SAME, HIDDEN),
    "lm_head.weight": (SAME, HIDDEN),
    "confidence_head.proj.weight": (SAME, HIDDEN),
}
"""By the end of a tensor's name. Others stay as they are: tables of tokens, norms of single heads."""
UNTOUCHED = ("q_norm.weight", "k_norm.weight")
NORMS = ("layernorm.weight", "norm.weight")
SIZES = {
    "hidden_size": "hidden",
    "target_hidden_size": "hidden",
    "intermediate_size": "intermediate",
    "num_attention_heads": "heads",
    "num_key_value_heads": "kv_heads",
    "num_target_layers": "layers",
}
"""What a config says -> where a shape has it."""


@dataclass(frozen=True, slots=True)
class _Axis:
    """Where the entries of an axis go: entry source[i] becomes target[i] of `size`."""

    source: Tensor
    target: Tensor
    size: int


def inflate_head(source: str | Path, small: Shape, large: Shape) -> Checkpoint:
    """A head for `inflate`'s target, from one for its original: padded with zeros, so that what it says is the same.

    `source` is a folder or hub id in the flat layout; `small` are the sizes of the target that it was trained for.
    Raises ModelError for another layout, or a head whose layers are not of its target's sizes.
    """
    found = outspoken(Checkpoint.read(source), small.layers)
    said = {name: getattr(small, ours) for name, ours in SIZES.items() if name in found.config}
    wrong = [name for name, size in said.items() if found.config[name] != size]
    if "hidden_size" not in said or wrong:
        raise ModelError(
            f"{source} cannot be enlarged with its target: config.json must say hidden_size"
            + (f", and {', '.join(wrong)} are not the target's" if wrong else "")
        )
    config = dict(found.config) | {name: getattr(large, SIZES[name]) for name in said}
    if "rms_norm_eps" in config:
        config["rms_norm_eps"] *= small.hidden / large.hidden
    tensors = {name: _enlarged(name, tensor, small, large) for name, tensor in found.tensors.items()}
    return Checkpoint(found.source, config, tensors)


def _enlarged(name: str, tensor: Tensor, small: Shape, large: Shape) -> Tensor:
    axes = next((axes for end, axes in AXES.items() if name.endswith(end)), None)
    if axes is None and tensor.dim() == 2 and name.split(".")[0].isdigit():
        axes = (SAME, HIDDEN)  # the output matrix of a head among several
    if axes is None or name.endswith(UNTOUCHED):
        return tensor
    if name.endswith(NORMS):  # more channels that are zero make the root mean square smaller
        tensor = (tensor.float() * math.sqrt(small.hidden / large.hidden)).to(tensor.dtype)
    for number, kind in enumerate(axes):
        axis = _axis(kind, tensor.shape[number], small, large)
        room = tensor.new_zeros(*tensor.shape[:number], axis.size, *tensor.shape[number + 1 :])
        tensor = room.index_copy_(number, axis.target, tensor.index_select(number, axis.source))
    return tensor


def _axis(kind: str, size: int, small: Shape, large: Shape) -> _Axis:
    if kind == HIDDEN:
        times, rest = divmod(size, small.hidden)
        starts = torch.arange(times)[:, None] * large.hidden
        target = torch.cat([(starts + torch.arange(small.hidden)).flatten(), times * large.hidden + torch.arange(rest)])
        return _Axis(torch.arange(size), target, times * large.hidden + rest)
    if kind == INNER:
        return _Axis(torch.arange(size), torch.arange(size), large.intermediate)
    if kind == SAME:
        return _Axis(torch.arange(size), torch.arange(size), size)
    slots, copies = query_slots(small, large)
    if kind == QUERIES:
        return _Axis(torch.arange(size), _rows(slots, small.head_dim), large.heads * large.head_dim)
    kept = _rows(copies, small.head_dim)
    return _Axis(kept, torch.arange(len(kept)), large.kv_heads * large.head_dim)


def _rows(heads: Tensor, dim: int) -> Tensor:
    """The entries of a projection that belong to these heads, in their order."""
    return (heads[:, None] * dim + torch.arange(dim)).flatten()
