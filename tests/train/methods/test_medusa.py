"""Heads are trained on what they compute when they serve, and learn."""

from pathlib import Path

import pytest
import torch

from foreword.draft.heads.block import BlockRequest
from foreword.draft.heads.medusa import MedusaBlocks, MedusaDrafter
from foreword.errors import InvalidRequest
from foreword.model import Model, Read
from foreword_train.data.packing import Packer, stack
from foreword_train.methods.ahead import pick
from foreword_train.methods.medusa import MedusaTask
from foreword_train.registry import MedusaOptions
from pair import TEXTS, Bytes, learn, llama, setting, two_records

LAYERS = 2


def task(name: str = "forward-kl", **options: object) -> MedusaTask:
    context = setting(llama(0, layers=LAYERS), loss=name)
    return MedusaOptions(**{"heads": 3, **options}).begin(context)


@pytest.mark.parametrize("own", [True, False])
@torch.no_grad()
def test_heads_are_trained_as_they_serve(own):
    made = task(own=own)
    for parameter in made.module.parameters():
        noise = torch.Generator().manual_seed(1)
        parameter += 0.1 * torch.randn(parameter.shape, generator=noise)
    block = two_records()
    predictions = made._predict(made.module, block, spread=True)
    anchors = pick(block, 128, 3, spread=True)
    target = Model(llama(0, layers=LAYERS))
    served, row = MedusaBlocks(made._heads, target), 0
    for _, at in anchors.valid.any(-1).nonzero().tolist():
        place, count = int(anchors.places[0, at]), int(anchors.valid[0, at].sum())
        first = place - int(block.positions[0, place])
        target.open(1, 16)
        read = Read(1, 0, block.tokens[0, first:place].tolist())
        _, states = target.read_hidden([read], (LAYERS,))
        target.close(1)
        request = BlockRequest(1, int(block.tokens[0, place]), states)
        wanted = served.compute([request])[0][:count]
        found = predictions.draft[row : row + count]
        torch.testing.assert_close(found, wanted, atol=1e-3, rtol=1e-3)
        row += count
    assert row == len(predictions.draft) == 2 * (4 * 3 + 2 + 1)


def test_own_lm_heads_begin_as_the_targets():
    made = task(own=True)
    for head in range(3):
        weight = made._heads.state_dict()[f"{head}.1.weight"]
        assert torch.equal(weight, made.target.lm_head.weight)
    made.loss(made.module, stack(Packer(Bytes(), TEXTS, 64).all(2))).backward()
    assert all(one.grad.abs().sum() > 0 for one in made.module.parameters())
    assert made.target.lm_head.weight.grad is None


@pytest.mark.parametrize("own", [True, False])
def test_heads_learn_and_are_served(tmp_path: Path, own):
    made = task("hybrid", own=own)
    first, last = learn(made, tmp_path, steps=15, rate=0.05)
    assert last["acceptance"] > first["acceptance"] + 0.05
    made.save(tmp_path / "heads")
    target = Model(llama(0, layers=LAYERS))
    assert MedusaDrafter.load(tmp_path / "heads", target, None).deep == 3
    assert task(draft=str(tmp_path / "heads")).parameters == made.parameters


def test_bad_options_are_refused():
    for options in ({"heads": 0}, {"layers": 0}):
        with pytest.raises(InvalidRequest, match="must be 1 or more"):
            task(**options)
