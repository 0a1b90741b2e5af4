"""The training loop learns; its log depends on settings only, not on kills."""

import json
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import nn

import foreword
from foreword.errors import InvalidRequest, ModelError
from foreword_train import checkpoint
from foreword_train.data.packing import Block
from foreword_train.devices import OneDevice
from foreword_train.log import Row
from foreword_train.trainer import TrainingConfig
from pair import Copying, losses, trainer

RECIPE = TrainingConfig(
    steps=12, batch=2, accumulate=2, warmup=3, learning_rate=0.02, evaluate=4, save=3
)


def log(folder: Path) -> list[dict]:
    return [
        json.loads(line) for line in (folder / "log.jsonl").read_text().splitlines()
    ]


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory) -> tuple[list[dict], dict[str, torch.Tensor]]:
    """The log and the weights of a run that nothing interrupts."""
    folder = tmp_path_factory.mktemp("undisturbed")
    run = trainer(folder, RECIPE)
    run.run()
    return log(folder), run.task.module.state_dict()


def test_it_learns_and_measures(undisturbed):
    rows, _ = undisturbed
    assert [row["step"] for row in rows] == list(range(13))
    assert [row["step"] for row in rows if row["held_out"]] == [0, 4, 8, 12]
    assert rows[12]["held_out"]["loss"] < 0.8 * rows[0]["held_out"]["loss"]
    assert all(row["tokens"] > 0 for row in rows[1:])


def test_other_seed_gives_another_log(tmp_path, undisturbed):
    rows = trainer(tmp_path, replace(RECIPE, seed=1)).run()
    assert losses(rows) != [row["loss"] for row in undisturbed[0]]


class Power(Exception):
    """An interruption."""


class Interrupted(Copying):
    """The task, until it has been asked for a loss so many times."""

    def __init__(self, calls: int) -> None:
        super().__init__()
        self.calls = calls

    def loss(self, module: nn.Module, block: Block) -> torch.Tensor:
        self.calls -= 1
        if self.calls < 0:
            raise Power
        return super().loss(module, block)


@pytest.mark.parametrize("calls", [0, 5, 9, 14, 15, 20, 27])
def test_interruption_does_not_change_the_log(tmp_path, undisturbed, calls):
    with pytest.raises(Power):
        trainer(tmp_path, RECIPE, task=Interrupted(calls)).run()
    torch.manual_seed(99)
    torch.rand(3)
    run = trainer(tmp_path, RECIPE)
    run.run(resume=True)
    rows, weights = undisturbed
    assert log(tmp_path) == rows
    assert all(
        torch.equal(value, weights[name])
        for name, value in run.task.module.state_dict().items()
    )


def test_interruption_does_not_change_muon(tmp_path):
    recipe = replace(RECIPE, optimizer="muon")
    whole = trainer(tmp_path / "whole", recipe)
    whole.run()
    with pytest.raises(Power):
        trainer(tmp_path / "cut", recipe, task=Interrupted(15)).run()
    run = trainer(tmp_path / "cut", recipe)
    run.run(resume=True)
    assert log(tmp_path / "cut") == log(tmp_path / "whole")
    weights = whole.task.module.state_dict()
    assert all(
        torch.equal(value, weights[name])
        for name, value in run.task.module.state_dict().items()
    )


def test_interrupted_save_is_ignored(tmp_path, undisturbed, monkeypatch):
    def cut(path: Path) -> None:
        raise Power

    with monkeypatch.context() as patch:
        patch.setattr(checkpoint, "sync", cut)
        with pytest.raises(Power):
            trainer(tmp_path, RECIPE).run()
    assert checkpoint.found(tmp_path / "checkpoints") == []
    trainer(tmp_path, RECIPE).run(resume=True)
    assert log(tmp_path) == undisturbed[0]


KILLED = """
import os, sys
from pathlib import Path
from pair import Copying, trainer
from train.test_trainer import RECIPE

class Killed(Copying):
    left = int(sys.argv[2])
    def loss(self, module, block):
        Killed.left -= 1
        if not Killed.left:
            os._exit(9)
        return super().loss(module, block)

trainer(Path(sys.argv[1]), RECIPE, task=Killed()).run(resume=True)
"""


def killed(folder: Path, calls: int) -> int:
    """Return the exit code of a process that trains until it ends in a loss."""
    source, tests = Path(foreword.__file__).parents[1], Path(__file__).parents[1]
    path = {
        "PYTHONPATH": os.pathsep.join(
            map(str, (source, tests, tests / "support", tests / "tiny"))
        ),
        "OMP_NUM_THREADS": "1",
    }
    command = [sys.executable, "-c", KILLED, str(folder), str(calls)]
    return subprocess.run(command, env=os.environ | path, check=False).returncode


def test_killed_process_is_resumed(tmp_path, undisturbed):
    assert killed(tmp_path, 19) == 9
    trainer(tmp_path, RECIPE).run(resume=True)
    assert log(tmp_path) == undisturbed[0]


@pytest.mark.slow
def test_process_killed_many_times_is_resumed(tmp_path, undisturbed):
    generator = torch.Generator().manual_seed(5)
    kills = 0
    while killed(tmp_path, int(torch.randint(8, 30, (), generator=generator))):
        kills += 1
        assert kills < 20
    assert kills > 1
    assert log(tmp_path) == undisturbed[0]


def test_finished_run_is_not_trained_again(tmp_path, undisturbed):
    trainer(tmp_path, RECIPE).run()
    run = trainer(tmp_path, RECIPE, task=Interrupted(0))
    rows = run.run(resume=True)
    assert losses(rows) == [row["loss"] for row in undisturbed[0]]
    assert all(
        torch.equal(value, undisturbed[1][name])
        for name, value in run.task.module.state_dict().items()
    )


def test_other_run_is_never_overwritten(tmp_path):
    trainer(tmp_path, RECIPE).run()
    with pytest.raises(InvalidRequest, match="holds a training already"):
        trainer(tmp_path, RECIPE).run()
    with pytest.raises(InvalidRequest, match=r"seed: 0, now 1.*same ones"):
        trainer(tmp_path, replace(RECIPE, seed=1)).run(resume=True)


def test_accumulated_gradients_equal_a_large_batch(tmp_path):
    def rows(batch: int, accumulate: int) -> list[Row]:
        task = Copying()
        task.module[1] = nn.Identity()  # dropout would draw otherwise for another shape
        recipe = replace(RECIPE, batch=batch, accumulate=accumulate)
        return trainer(tmp_path / f"{batch} {accumulate}", recipe, task=task).run()

    large, small = rows(4, 1), rows(1, 4)
    assert [row.tokens for row in large] == [row.tokens for row in small]
    for one, other in zip(large[1:], small[1:], strict=True):
        assert one.loss == pytest.approx(other.loss, rel=1e-5)
        assert one.gradient == pytest.approx(other.gradient, rel=1e-4)


class Rank(OneDevice):
    """One of two, whose sums are its own: enough to see which blocks it takes."""

    world = 2

    def __init__(self, rank: int) -> None:
        super().__init__(torch.device("cpu"))
        self.rank = rank


def test_ranks_share_the_blocks_of_a_step(tmp_path):
    seeds, places = [], []
    for rank in range(2):
        run = trainer(
            tmp_path / str(rank), replace(RECIPE, steps=3), devices=Rank(rank)
        )
        run.run()
        seeds.append(set(run.task.seeds))
        places.append(run.place)
    assert seeds[0] & seeds[1] == set()
    assert len(seeds[0]) == len(seeds[1]) == 6
    assert places[0] == places[1]


def test_the_learning_rate_rises_and_falls():
    recipe = TrainingConfig(steps=100, warmup=10, learning_rate=1.0)
    rates = [recipe.rate(step) for step in range(1, 101)]
    assert rates[:10] == pytest.approx([step / 10 for step in range(1, 11)])
    assert rates[9:] == sorted(rates[9:], reverse=True)
    assert rates[54] == pytest.approx(0.55)
    assert rates[-1] == pytest.approx(0.1)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("steps", 0),
        ("batch", 0),
        ("warmup", -1),
        ("learning_rate", 0.0),
        ("clip", float("nan")),
        ("optimizer", "moun"),
    ],
)
def test_config_out_of_range_is_refused(name, value):
    with pytest.raises(InvalidRequest, match=name):
        TrainingConfig(**{name: value})


class Exploding(Copying):
    def loss(self, module: nn.Module, block: Block) -> torch.Tensor:
        return super().loss(module, block) * float("inf")


def test_infinite_loss_ends_the_run(tmp_path):
    with pytest.raises(ModelError, match=r"at step 1: .* lower learning rate"):
        trainer(tmp_path, RECIPE, task=Exploding()).run()
