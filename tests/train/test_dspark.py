"""The head is taught with the token before known, and its confidence what is kept; both help."""

from pathlib import Path

import pytest
import torch
import torch.nn.functional as F

from foreword.draft.dspark import DSparkBlocks, DSparkDrafter
from foreword.errors import InvalidRequest
from foreword.model import Model
from foreword.train.devices import OneDevice
from foreword.train.dspark import DSparkTask
from foreword.train.losses import LOSSES, overlap
from foreword.train.pack import Block, Packer, stack
from foreword.train.students import DSparkStudent
from foreword.train.trainer import Recipe, Trainer
from train.pair import TEXTS, Bytes, llama, setting

LAYERS = 4


def task(name: str = "kl-l1", **options: object) -> DSparkTask:
    options = {"layers": 1, "block": 3, "anchors": 40, "rank": 8, "decay": 2.0, **options}
    return DSparkStudent(**options).begin(setting(llama(0, layers=LAYERS), loss=name))


def block():
    return Packer(Bytes(), TEXTS, 64).all(1)[0]


@torch.no_grad()
def said_by_the_table(made: DSparkTask) -> float:
    return float(made._made.markov_head(torch.arange(320)).abs().max())


@torch.no_grad()
def test_laws_are_those_that_serve():
    made = task()
    torch.nn.init.normal_(made._made.markov_head.markov_w2.weight)
    hidden, before = torch.randn(5, 32), torch.tensor([1, 2, 3, 4, 5])
    taught = made.laws(hidden, before, torch.zeros(5, dtype=torch.int64))
    served = DSparkBlocks(made._made, Model(llama(0, layers=LAYERS)))
    torch.testing.assert_close(taught, served.after(served.target.speak(hidden), before.tolist()), atol=1e-4, rtol=1e-4)


def stacked(one: Block) -> Block:
    return stack([one])


@torch.no_grad()
def test_the_loss_is_that_of_laws_and_promises():
    made = task("tv")
    said = made._said(made.module, stacked(block()), spread=True)
    kept = overlap(said.target, said.draft)
    promised = made._made.confidence(said.hidden, said.before)
    expected = LOSSES["tv"](said.target, said.draft) + F.binary_cross_entropy(
        promised.sigmoid(), kept, reduction="none"
    )
    torch.testing.assert_close(made.losses(said), expected)
    figures = made.figures(said)
    torch.testing.assert_close(figures["promise_bias"], (promised.sigmoid() - kept).mean())
    torch.testing.assert_close(figures["promise_error"], (promised.sigmoid() - kept).abs().mean())


def test_the_table_says_nothing_at_first_and_learns(tmp_path: Path):
    made = task()
    assert said_by_the_table(made) == 0
    trainer = Trainer(
        made,
        Packer(Bytes(), TEXTS[:30], 64),
        Recipe(steps=15, batch=2, warmup=3, learning_rate=0.01, evaluate=15),
        folder=tmp_path,
        devices=OneDevice(torch.device("cpu")),
        held_out=Packer(Bytes(), TEXTS[30:], 64).all(4),
    )
    first, last = (row.held_out for row in trainer.run() if row.held_out)
    assert last["acceptance"] > first["acceptance"] + 0.05
    assert last["promise_error"] < first["promise_error"]
    assert said_by_the_table(made) > 0.01
    made.save(tmp_path / "head")
    assert DSparkDrafter.load(tmp_path / "head", Model(llama(0, layers=LAYERS)), None).deep == 3
    assert task(draft=str(tmp_path / "head")).parameters == made.parameters


def test_what_cannot_be_is_refused():
    with pytest.raises(InvalidRequest, match="rank must be"):
        task(rank=0)
