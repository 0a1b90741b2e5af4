"""Heads of further kinds, made of trained ones, keep the contract of drafters."""

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import Tensor

import folders
import starter
from contract import CONTRACT, the_text_is_unaffected
from foreword.draft import default_method, method
from foreword.errors import InvalidRequest, ModelError
from foreword.model.loading.checkpoint import Checkpoint
from foreword_train.export import export
from running import DTYPE, TRAINED, sayings, shelf, target
from trainables import trained

WINDOW = {"layer_types": ["sliding_attention"], "sliding_window": 8}
CONVOLVED = {
    "architectures": ["DFlash2DraftModel"],
    "conv_kernel_size": 2,
    "conv_group_size": 16,
    "selector_rank": 16,
    "selector_top_k": 16,
    "sliding_window": None,
}
KINDS = {
    "window": ("dflash", {**WINDOW, "is_causal": False}),
    "jetspec": ("dflash", {"causal_head": True}),
    "dflash2": ("dflash", CONVOLVED),
    "p-eagle": ("eagle", {"architectures": ["PEagleDraftModel"], "mask_token_id": 3}),
}


def made(kind: str, folder: Path) -> str:
    """Write a head of this kind; return its method."""
    base, changes = KINDS[kind]
    head = Checkpoint.read(shelf(TRAINED[base]))
    more: dict[str, Tensor] = {}
    size, vocab = head.config["hidden_size"], head.config["vocab_size"]
    if kind == "dflash2":
        for name in ("attention_conv", "mlp_conv"):
            kernel = torch.zeros(2, 2, size)
            kernel[:, 0], kernel[:, 1] = 1, 0.02
            more[f"layers.0.{name}.base_kernel"] = kernel
            small = 0.001 * torch.randn(4 * size // 16, size)
            more[f"layers.0.{name}.kernel_projection.weight"] = small
        for name in ("predecessor_codebook", "successor_codebook"):
            more[f"candidate_selector.{name}"] = 0.1 * torch.randn(vocab, 16)
        projection = "candidate_selector.hidden_projection.weight"
        more[projection] = 0.1 * torch.randn(16, size)
    if kind == "p-eagle":
        more["mask_hidden"] = torch.zeros(1, 1, head.tensors["fc.weight"].shape[1])
        changes = {**changes, "num_hidden_layers": 2}
        for name in head.tensors:
            if name.startswith("midlayer.") and "hidden_norm" not in name:
                own = head.tensors[name]
                wide = own.dim() == 2 and own.shape[1] == 2 * size
                small = 0.1 if "o_proj" in name or "down" in name else 1
                own = small * (own[:, size:] if wide else own)
                more[name.replace("midlayer", "layers.1")] = own
    Checkpoint("", {**head.config, **changes}, {**head.tensors, **more}).write(folder)
    return base


@pytest.mark.parametrize("kind", KINDS)
def test_head_keeps_the_contract_and_changes_no_text(kind, tmp_path):
    name = made(kind, tmp_path)
    assert default_method(tmp_path) == name
    for clause in (*CONTRACT, the_text_is_unaffected):
        clause(lambda: method(name).load(tmp_path, target(DTYPE), None), DTYPE)


@pytest.mark.parametrize(
    ("kind", "engine", "says"),
    [
        ("window", "speculators", "sliding or causal layers"),
        ("jetspec", "llama.cpp", "sliding or causal layers"),
        ("p-eagle", "llama.cpp", "a mask token"),
        ("dflash2", "vllm", r"its config names \['DFlash2DraftModel'\]"),
        ("p-eagle", "vllm", "a mask token"),
    ],
)
def test_head_that_cannot_be_written_for_an_engine_is_refused(
    kind, engine, says, tmp_path
):
    made(kind, tmp_path / "head")
    with pytest.raises((InvalidRequest, ModelError), match=says):
        export(tmp_path / "head", starter.target(), engine, tmp_path / "out")


@pytest.mark.parametrize("kind", KINDS)
def test_training_on_from_other_kinds_is_refused(kind, tmp_path):
    name = made(kind, tmp_path)
    options = replace(TRAINED[name], draft=str(tmp_path))
    with pytest.raises((InvalidRequest, ModelError), match=r"cannot (train on|load)"):
        trained(options, sayings()[:2])


@pytest.mark.parametrize("mask", [None, 8192, "7"])
def test_p_eagle_without_a_mask_token_is_refused(mask, tmp_path):
    made("p-eagle", tmp_path)
    folders.change(tmp_path, {"mask_token_id": mask}, {})
    with pytest.raises(ModelError, match=f"mask token .* is {mask!r}"):
        method("eagle").load(tmp_path, target(DTYPE), None)
