"""Heads follow their definition at the last token; folders are the original ones."""

import json
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from safetensors.torch import load_file

import folders
from foreword.draft.heads.block import BlockRequest
from foreword.draft.heads.medusa import MedusaBlocks, MedusaDrafter, MedusaHeads
from foreword.errors import ModelError
from foreword.model import Read
from foreword.model.loading.checkpoint import Checkpoint
from running import draft, target


def heads(*, own: bool, layers: int = 1, count: int = 3) -> MedusaHeads:
    torch.manual_seed(0)
    made = MedusaHeads(count, layers, 384, 8192, own=own)
    for parameter in made.parameters():
        torch.nn.init.normal_(parameter, std=0.05)
    return made


@pytest.fixture(params=[True, False], ids=["own", "shared"])
def folder(tmp_path, request) -> Path:
    heads(own=request.param).dump(torch.float32).write(tmp_path / "heads")
    return tmp_path / "heads"


@pytest.mark.parametrize("layers", [1, 2])
@pytest.mark.parametrize("own", [True, False])
@torch.inference_mode()
def test_a_block_is_what_the_definition_says(own, layers):
    weights = heads(own=own, layers=layers).state_dict()
    blocks = MedusaBlocks(heads(own=own, layers=layers), target())
    states = torch.randn(4, 384)
    found = blocks.compute(
        [BlockRequest(1, 9, states[:1]), BlockRequest(2, 8, states[1:])]
    )
    again = blocks.compute([BlockRequest(2, 8, states[:0])])
    torch.testing.assert_close(again[0], found[1])
    for distributions, x in zip(found, states[[0, 3]], strict=True):
        for head in range(3):
            hidden = x
            for layer in range(layers):
                name = f"{head}.{layer}.linear"
                hidden = hidden + F.silu(
                    weights[f"{name}.weight"] @ hidden + weights[f"{name}.bias"]
                )
            said = (
                weights[f"{head}.{layers}.weight"] @ hidden
                if own
                else target().lm_head(hidden[None])[0]
            )
            torch.testing.assert_close(distributions[head], said, atol=1e-3, rtol=1e-4)


@torch.inference_mode()
def test_new_heads_say_what_the_target_says():
    """They say it of the next token: they begin with the target's own head."""
    tokens = [5, 6, 7, 8]
    target().open(-3, 8)
    logits, seen = target().read_hidden([Read(-3, 0, tokens)], (8,))
    target().close(-3)
    blocks = MedusaBlocks(MedusaHeads(2, 1, 384, 8192, own=False), target())
    distributions = blocks.compute([BlockRequest(1, 9, seen)])[0]
    torch.testing.assert_close(
        distributions, logits.float().expand(2, -1), atol=1e-3, rtol=1e-4
    )


def test_tensors_are_named_as_the_original_names_them(folder):
    tensors = load_file(folder / "model.safetensors")
    config = json.loads((folder / "config.json").read_text())
    expected = {
        f"{head}.0.linear.{part}" for head in range(3) for part in ("weight", "bias")
    }
    own = {f"{head}.1.weight" for head in range(3)}
    assert set(tensors) in (expected, expected | own)
    assert tensors["2.0.linear.weight"].shape == (384, 384)
    assert (config["medusa_num_heads"], config["medusa_num_layers"]) == (3, 1)


def test_what_was_written_is_read(folder):
    found = MedusaHeads.read(Checkpoint.read(folder))
    for name, tensor in heads(own=found.own).state_dict().items():
        assert torch.equal(found.state_dict()[name], tensor)
    drafter = MedusaDrafter.load(folder, target(), None)
    assert (drafter.hidden_layers, drafter.deep) == ((8,), 3)


@pytest.mark.parametrize(
    ("config", "tensors", "said"),
    [
        ({"medusa_num_heads": None}, {}, "medusa_num_heads in config.json or"),
        ({"medusa_num_heads": 2}, {}, "holds 2.0.linear.bias"),
        ({"medusa_num_heads": 4}, {}, "lacks 3.0.linear.bias"),
        ({}, {"0.0.linear.weight": None}, "the tensor 0.0.linear.weight"),
        ({}, {"1.0.linear.weight": torch.zeros(2, 2)}, "has the shape"),
    ],
)
def test_a_folder_that_does_not_fit_is_refused(folder, config, tensors, said):
    folders.change(folder, config, tensors)
    with pytest.raises(ModelError, match=said):
        MedusaDrafter.load(folder, target(), None)


def test_heads_for_another_target_are_refused(folder):
    with pytest.raises(ModelError, match="hidden_size is 384 there"):
        MedusaDrafter.load(folder, draft(), None)
