"""Loads and saves the folders of trained heads; says where one does not fit."""

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from foreword.draft.base import Source
from foreword.errors import InvalidRequest, ModelError
from foreword.model.head_layers import HFConfig
from foreword.model.layers import layer_count
from foreword.model.loading.checkpoint import Checkpoint
from foreword.model.loading.hub import config_of
from foreword.registry import HEAD, HEAD_METHODS


class TrainedHead:
    """A head from a checkpoint, and the sizes of the target that it was trained for."""

    hidden_size: int
    """Features of the target's hidden states."""
    vocab: int
    """Tokens of the target."""
    target_layers: int = 0
    """Layers of the target; 0 = unknown."""

    @classmethod
    def read(cls, checkpoint: Checkpoint) -> "TrainedHead":
        """Load a head. Raises ModelError for another kind, or without a tensor."""
        raise NotImplementedError


TRAINING_ONLY = ("verifier_norm.weight", "verifier_lm_head.weight")
"""Copies of the target's tensors that older versions of speculators saved."""


def checkpoint_of(source: Source) -> Checkpoint:
    """Read a head's checkpoint.

    Raises InvalidRequest unless `source` is a path or hub id, ModelError if unreadable.
    """
    if not isinstance(source, str | Path):
        raise InvalidRequest(
            f"cannot load the draft head: this method needs {HEAD}. "
            "Pass draft='folder or hub id'"
        )
    return Checkpoint.read(source)


def check_fits(source: str, head: TrainedHead, target: HFConfig) -> None:
    """Raise ModelError where a head was trained for a target of other sizes."""
    config = target.get_text_config()
    layers = layer_count(config)
    sizes = {
        "hidden_size": (head.hidden_size, config.hidden_size),
        "vocab_size": (head.vocab, config.vocab_size),
        "num_target_layers": (head.target_layers or layers, layers),
    }
    check_sizes(source, target, sizes)


def check_sizes(
    source: str | Path, target: HFConfig, sizes: Mapping[str, tuple[object, object]]
) -> None:
    """Raise ModelError where a drafter was trained for another target; `sizes`: its
    sizes and the target's, by name.
    """
    wrong = [
        f"{name} is {size} there and {theirs} in the target"
        for name, (size, theirs) in sizes.items()
        if size != theirs
    ]
    if wrong:
        raise ModelError(
            f"cannot use {source} with {target.name_or_path or 'the target'}: "
            f"{', '.join(wrong)}. Choose one trained for this target"
        )


def check_tokens(source: str, tokens: Tensor, vocab: int) -> None:
    """Raise ModelError where a reduced vocabulary has tokens that the target lacks."""
    if not bool(((tokens >= 0) & (tokens < vocab)).all()):
        raise ModelError(
            f"cannot load {source}: d2t points outside the vocabulary of {vocab} "
            "tokens. Download it again"
        )


def trained_for(source: str | Path) -> str | None:
    """Return the model that a head's config names as its target; None without one."""
    config = config_of(source)
    speculators = config.get("speculators_config") or {}
    names = (
        (speculators.get("verifier") or {}).get("name_or_path"),
        config.get("base_model_name_or_path"),
        config.get("target_model_name_or_path"),
    )
    return next((name for name in names if isinstance(name, str) and name), None)


def check_kind(checkpoint: Checkpoint, names: Iterable[str], method: str) -> None:
    """Raise ModelError unless a config names one of the architectures `names`, or
    `method` in the layout of speculators.
    """
    config, known = checkpoint.config, list(names)
    kinds = [*(config.get("architectures") or ()), config.get("speculators_model_type")]
    kinds = [kind for kind in kinds if kind]
    if not {*known, method} & set(kinds):
        methods = ", ".join(name for name in HEAD_METHODS if "_" not in name)
        raise ModelError(
            f"cannot load {checkpoint.source} as a {known[0]}: its config names "
            f"{kinds}. Choose such a head, or the method of another known kind: "
            f"{methods}"
        )


def head_dtype(checkpoint: Checkpoint) -> torch.dtype:
    """Return the dtype of a head: of its largest floating-point tensor."""
    tensors = checkpoint.tensors.values()
    floats = [tensor for tensor in tensors if tensor.is_floating_point()]
    return max(floats, key=Tensor.numel).dtype


def saved(
    head: nn.Module, config: Mapping[str, Any], dtype: torch.dtype, key: str = "dtype"
) -> Checkpoint:
    """Return a head to write: its config with the dtype as `key`, and its tensors, with
    floating-point numbers of that dtype.
    """
    tensors = {
        name: tensor.detach().to("cpu", dtype if tensor.is_floating_point() else None)
        for name, tensor in head.state_dict().items()
    }
    name = str(dtype).removeprefix("torch.")
    return Checkpoint("", {**config, key: name}, tensors)
