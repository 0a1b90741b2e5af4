"""The folder of an EAGLE-3 head, rewritten as other projects publish such heads."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch import Tensor

from foreword.model.loading.checkpoint import Checkpoint

OURS = tuple(
    (
        "architectures target_hidden_size norm_before_residual norm_before_fc fc_norm "
        "norm_output rope_parameters"
    ).split()
)
"""Config keys that older layouts lack."""


def _config(folder: Path, config: dict[str, Any]) -> None:
    (folder / "config.json").write_text(json.dumps(config))


def _older(head: Checkpoint, architecture: str) -> dict[str, Any]:
    config = {key: value for key, value in head.config.items() if key not in OURS}
    return {**config, "architectures": [architecture]}


def original(head: Checkpoint, folder: Path) -> None:
    """SafeAILab/EAGLE: a pickled file, the architecture of a language model."""
    _config(folder, _older(head, "LlamaForCausalLM"))
    torch.save(dict(head.tensors), folder / "pytorch_model.bin")


def specforge(head: Checkpoint, folder: Path) -> None:
    """SpecForge's configs (qwen3-8b-eagle3.json): layers by their outputs."""
    states = head.config.get("eagle_config") or {}
    config = _older(head, "LlamaForCausalLMEagle3")
    config.pop("eagle_aux_hidden_state_layer_ids", None)
    _config(folder, {**config, "eagle_config": states})
    save_file(dict(head.tensors), folder / "model.safetensors")


def speculators(head: Checkpoint, folder: Path, embeddings: Tensor) -> None:
    """speculators: the layer's config nested, embeddings beside."""
    names = ("draft_vocab_size", "eagle_aux_hidden_state_layer_ids")
    nested = _older(head, "LlamaForCausalLM")
    config = {
        "speculators_model_type": "eagle3",
        "transformer_layer_config": nested,
        "norm_before_residual": False,
        **{name: head.config[name] for name in names if name in head.config},
    }
    tensors = {
        name.replace("midlayer.", "layers.0."): tensor
        for name, tensor in head.tensors.items()
    }
    _config(folder, config)
    save_file(
        {**tensors, "embed_tokens.weight": embeddings}, folder / "model.safetensors"
    )


def shards(head: Checkpoint, folder: Path) -> None:
    """Several files and their index."""
    _config(folder, dict(head.config))
    names = sorted(head.tensors)
    parts = {"a.safetensors": names[::2], "b.safetensors": names[1::2]}
    for part, inside in parts.items():
        save_file({name: head.tensors[name] for name in inside}, folder / part)
    where = {name: part for part, inside in parts.items() for name in inside}
    (folder / "model.safetensors.index.json").write_text(
        json.dumps({"weight_map": where})
    )


WRITERS: dict[str, Callable[[Checkpoint, Path], None]] = {
    "original": original,
    "specforge": specforge,
    "shards": shards,
}
