"""Inflation of a trained head to an inflated target: same draft tokens, larger head."""

import math
from pathlib import Path

import torch
from torch import Tensor

from foreword.draft.heads.eagle_published import states_of
from foreword.errors import ModelError
from foreword.model.loading.checkpoint import Checkpoint
from foreword_lab.bench.inflate.model import Shape, query_slots, rows_of

HIDDEN = "hidden"
QUERIES = "queries"
KEYS = "keys"
INNER = "inner"
SAME = "same"
"""Kinds of axes: hidden channels, perhaps several times with further entries after
them; query heads; key heads; the MLP's channels; axes that do not grow."""
AXES: dict[str, tuple[str, ...]] = {
    "fc.weight": (HIDDEN, HIDDEN),
    "eh_proj.weight": (HIDDEN, HIDDEN),
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
"""End of a tensor's name -> kinds of its axes; other tensors are unchanged."""
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
"""Key of a head's config -> attribute of Shape."""


def inflate_head(source: str | Path, small: Shape, large: Shape) -> Checkpoint:
    """Return a head for an inflated target from one for the original, padded with zeros
    so that its output is equal.

    `source` is a folder or hub id in the flat layout; `small` are the sizes of its
    original target. Raises ModelError for another layout, or if the sizes of the head
    are not its target's.
    """
    head = states_of(Checkpoint.read(source), small.layers)
    sizes = {
        name: getattr(small, ours)
        for name, ours in SIZES.items()
        if name in head.config
    }
    wrong = [name for name, size in sizes.items() if head.config[name] != size]
    if "hidden_size" not in sizes or wrong:
        raise ModelError(
            f"cannot enlarge {source} with its target: config.json must name "
            "hidden_size"
            + (f", and {', '.join(wrong)} are not the target's" if wrong else "")
        )
    config = dict(head.config) | {name: getattr(large, SIZES[name]) for name in sizes}
    if "rms_norm_eps" in config:
        config["rms_norm_eps"] *= small.hidden / large.hidden
    tensors = {
        _numbered(name, small, large): _enlarged(name, tensor, small, large)
        for name, tensor in head.tensors.items()
    }
    return Checkpoint(head.source, config, tensors)


def _numbered(name: str, small: Shape, large: Shape) -> str:
    """Return the name of a tensor, numbered anew after the target's layers."""
    before = f"model.layers.{small.layers}."
    after = f"model.layers.{large.layers}."
    return name.replace(before, after, 1) if name.startswith(before) else name


def _enlarged(name: str, tensor: Tensor, small: Shape, large: Shape) -> Tensor:
    axes = next((axes for end, axes in AXES.items() if name.endswith(end)), None)
    if axes is None and tensor.dim() == 2 and name.split(".")[0].isdigit():
        axes = (SAME, HIDDEN)  # the output matrix of one of several heads
    if axes is None or name.endswith(UNTOUCHED):
        return tensor
    if name.endswith(NORMS):  # the added zero channels reduce the root mean square
        tensor = (tensor.float() * math.sqrt(small.hidden / large.hidden)).to(
            tensor.dtype
        )
    for number, kind in enumerate(axes):
        source, target, size = _axis(kind, tensor.shape[number], small, large)
        padded = tensor.new_zeros(
            *tensor.shape[:number], size, *tensor.shape[number + 1 :]
        )
        tensor = padded.index_copy_(number, target, tensor.index_select(number, source))
    return tensor


def _axis(
    kind: str, size: int, small: Shape, large: Shape
) -> tuple[Tensor, Tensor, int]:
    """Return how an axis grows: old entry source[i] becomes entry target[i] of the last
    number.
    """
    if kind == HIDDEN:
        times, rest = divmod(size, small.hidden)
        starts = torch.arange(times)[:, None] * large.hidden
        target = torch.cat(
            [
                (starts + torch.arange(small.hidden)).flatten(),
                times * large.hidden + torch.arange(rest),
            ]
        )
        return torch.arange(size), target, times * large.hidden + rest
    if kind == INNER:
        return torch.arange(size), torch.arange(size), large.intermediate
    if kind == SAME:
        return torch.arange(size), torch.arange(size), size
    slots, copies = query_slots(small, large)
    if kind == QUERIES:
        rows = rows_of(slots, small.head_dim)
        return torch.arange(size), rows, large.heads * large.head_dim
    rows = rows_of(copies, small.head_dim)
    return rows, torch.arange(len(rows)), large.kv_heads * large.head_dim
