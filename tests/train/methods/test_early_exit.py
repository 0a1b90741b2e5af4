"""A target learns to predict after its first layers; its last stays as it was."""

from dataclasses import replace
from pathlib import Path

import pytest
import torch

from foreword.draft.self_speculative.exits import trained_exits
from foreword.errors import InvalidRequest
from foreword.model import Model
from foreword_train.data.packing import Packer, stack
from foreword_train.devices import OneDevice
from foreword_train.methods.early_exit import EarlyExitTask
from foreword_train.registry import EarlyExitOptions
from foreword_train.trainer import Trainer, TrainingConfig
from pair import TEXTS, Bytes, llama, setting

LAYERS = 3


@pytest.fixture(scope="module")
def source(tmp_path_factory) -> Path:
    """Return the folder of the target."""
    folder = tmp_path_factory.mktemp("target")
    llama(0, layers=LAYERS).save_pretrained(folder)
    return folder


def task(source: Path, **options: object) -> EarlyExitTask:
    context = replace(setting(llama(0, layers=LAYERS)), source=source)
    return EarlyExitOptions(**options).begin(context)


def trained(made: EarlyExitTask, folder: Path, steps: int) -> list[dict[str, float]]:
    recipe = TrainingConfig(steps=steps, batch=2, warmup=3, evaluate=steps, save=5)
    trainer = Trainer(
        made,
        Packer(Bytes(), TEXTS[:30], 64),
        replace(recipe, learning_rate=0.01),
        folder=folder,
        devices=OneDevice(torch.device("cpu")),
        held_out=Packer(Bytes(), TEXTS[30:], 64).all(4),
    )
    rows = trainer.run(resume=(folder / "checkpoints").exists())
    return [row.held_out for row in rows if row.held_out]


def test_exits_learn_and_the_last_layer_stays(source, tmp_path):
    made = task(source, ramp=10)
    first, last = trained(made, tmp_path, 30)
    assert last["agreement"] > first["agreement"] + 0.1
    for exit_layer in (1, 2):
        name = f"agreement_{exit_layer}"
        assert last[name] > first[name]
    assert last["loss"] < first["loss"] + 0.3
    made.save(tmp_path / "made")
    assert trained_exits(Model.load(tmp_path / "made", dtype="float32")) == (1, 2)


def test_before_training_the_last_layer_is_the_target(source):
    made = task(source, dropout=0.0, scale=0.0)
    block = stack(Packer(Bytes(), TEXTS, 64).all(2))
    loss = made.loss(made.module, block).detach()
    assert float(loss) == pytest.approx(0, abs=1e-3)
    assert made.target.model.embed_tokens.weight.requires_grad is False


def test_dropout_grows_with_depth_and_time(source):
    module = task(source, dropout=0.5, ramp=8).module
    assert module.rates() == [0, 0, 0]
    module.forwards += 4
    half = module.rates()
    module.forwards += 40
    assert module.rates() == pytest.approx([0, 0.5 * (2**0.5 - 1), 0.5])
    assert 0 == half[0] < half[1] < half[2] < 0.5


def test_dropped_layers_leave_their_blocks_as_they_are(source):
    made = task(source, dropout=0.999999, ramp=1)
    made._module.forwards += 1
    rates = made._module.rates()
    assert rates[0] == 0
    assert rates[-1] > 0.99
    block = stack(Packer(Bytes(), TEXTS, 64).all(2))
    made.module.train()
    read = {"input_ids": block.tokens, "position_ids": block.positions}
    rows = block.learnt
    torch.manual_seed(0)
    early, last = made.module(read | {"use_cache": False}, rows, [2])
    assert torch.equal(early, last)


@pytest.mark.parametrize("exits", ["0", "3", "x", "", "1,,2"])
def test_bad_exits_are_refused(source, exits):
    with pytest.raises(InvalidRequest, match="from 1 to 2"):
        task(source, exits=exits)
    with pytest.raises(InvalidRequest, match="'dropout'"):
        task(source, dropout=1.0)
    assert task(source, exits="2, 1").exits == (1, 2)
