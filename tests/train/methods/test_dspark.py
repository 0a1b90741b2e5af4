"""The head is trained given the token before, and its confidence on what is accepted."""

from pathlib import Path

import pytest
import torch
import torch.nn.functional as F

from foreword.draft.heads.dspark import DSparkBlocks, DSparkDrafter
from foreword.errors import InvalidRequest
from foreword.model import Model
from foreword_train.data.packing import Packer, stack
from foreword_train.losses import LOSSES, overlap
from foreword_train.methods.dspark import DSparkTask
from foreword_train.registry import DSparkOptions
from pair import TEXTS, Bytes, learn, llama, setting

LAYERS = 4


def task(name: str = "kl-l1", **options: object) -> DSparkTask:
    usual = dict(layers=1, block=3, anchors=40, rank=8, decay=2.0)
    context = setting(llama(0, layers=LAYERS), loss=name)
    return DSparkOptions(**usual | options).begin(context)


def block():
    return Packer(Bytes(), TEXTS, 64).all(1)[0]


@torch.no_grad()
def largest_in_the_table(made: DSparkTask) -> float:
    return float(made._head.markov_head(torch.arange(320)).abs().max())


@torch.no_grad()
def test_distributions_are_those_that_serve():
    made = task()
    torch.nn.init.normal_(made._head.markov_head.markov_w2.weight)
    hidden, before = torch.randn(5, 32), torch.tensor([1, 2, 3, 4, 5])
    trained = made.distributions(hidden, before, torch.zeros(5, dtype=torch.int64))
    served = DSparkBlocks(made._head, Model(llama(0, layers=LAYERS)))
    wanted = served.after(served.target.lm_head(hidden), before.tolist())
    torch.testing.assert_close(trained, wanted, atol=1e-4, rtol=1e-4)


@torch.no_grad()
def test_loss_adds_distributions_and_confidence():
    made = task("tv")
    predictions = made._predict(made.module, stack([block()]), spread=True)
    kept = overlap(predictions.target, predictions.draft)
    confidence = made._head.confidence(predictions.hidden, predictions.before)
    sure = confidence.sigmoid()
    expected = LOSSES["tv"](predictions.target, predictions.draft)
    expected += F.binary_cross_entropy(sure, kept, reduction="none")
    torch.testing.assert_close(made.losses(predictions), expected)
    metrics = made.metrics(predictions)
    torch.testing.assert_close(metrics["promise_bias"], (sure - kept).mean())
    torch.testing.assert_close(metrics["promise_error"], (sure - kept).abs().mean())


def test_table_begins_at_zero_and_learns(tmp_path: Path):
    made = task()
    assert largest_in_the_table(made) == 0
    first, last = learn(made, tmp_path, steps=15, rate=0.01)
    assert last["acceptance"] > first["acceptance"] + 0.05
    assert last["promise_error"] < first["promise_error"]
    assert largest_in_the_table(made) > 0.01
    made.save(tmp_path / "head")
    target = Model(llama(0, layers=LAYERS))
    assert DSparkDrafter.load(tmp_path / "head", target, None).deep == 3
    assert task(draft=str(tmp_path / "head")).parameters == made.parameters


def test_rank_of_zero_is_refused():
    with pytest.raises(InvalidRequest, match="'rank' must be"):
        task(rank=0)
