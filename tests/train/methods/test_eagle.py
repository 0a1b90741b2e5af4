"""Training-time test: a head reads the same in training as in drafting, and learns."""

from functools import partial
from pathlib import Path

import pytest
import torch
from torch.nn.functional import smooth_l1_loss
from transformers import LlamaConfig

from foreword.draft.heads.eagle import EagleDrafter
from foreword.draft.heads.eagle_checkpoint import dump
from foreword.draft.heads.eagle_model import EagleConfig, EagleHead
from foreword.errors import InvalidRequest
from foreword_train.data.packing import Block, Packer, stack
from foreword_train.devices import OneDevice
from foreword_train.methods.eagle import HeadTraining
from foreword_train.registry import EagleOptions
from foreword_train.trainer import Trainer, TrainingConfig
from pair import (
    TEXTS,
    VOCAB,
    Bytes,
    check_packed,
    check_served,
    learn,
    llama,
    random_pieces,
    setting,
)
from tiny_sizes import sizes

STEPS = 3


close = partial(torch.testing.assert_close, atol=1e-4, rtol=1e-4)


def training(target=None, loss: str = "forward-kl", **options) -> HeadTraining:
    context = setting(target or llama(0, layers=3), loss)
    return HeadTraining(context, EagleOptions(unroll=STEPS, **options))


def test_head_is_trained_as_it_serves():
    hf = llama(0, layers=3)
    check_served(training(hf), lambda target: EagleDrafter(training(hf).head, target))


def test_packed_records_are_learnt_as_if_alone():
    check_packed(training(), random_pieces(0, 7, 12, 9))


def test_gradients_reach_the_head_alone():
    task = training()
    task.loss(task.module, stack([Block.of(random_pieces(0, 20), 20)])).backward()
    assert all(parameter.grad is None for parameter in task.target.parameters())
    grads = [parameter.grad for parameter in task.head.parameters()]
    assert all(grad is not None and grad.any() for grad in grads)


def test_draft_vocabulary_is_the_most_frequent_tokens():
    # the counts of `setting` fall with the number of the token
    task = training(draft_vocab=100)
    assert torch.equal(task.head.tokens, torch.arange(100))
    assert task.head.t2d.sum() == 100
    block = stack([Block.of(random_pieces(0, 20), 20)])
    with torch.no_grad():
        found = task.measure(task.module, block)
    assert 0 < found["acceptance_1"] < 18
    names = ("acceptance", "agreement")
    assert set(found) == {f"{name}_{step}" for name in names for step in (1, 2, 3)}


def test_saved_head_can_be_trained_further(tmp_path: Path):
    task = training()
    task.save(tmp_path)
    again = training(draft=str(tmp_path))
    for name, tensor in task.head.state_dict().items():
        assert torch.equal(tensor, again.head.state_dict()[name]), name


def test_head_learns_its_target(tmp_path: Path):
    first, last = learn(training(loss="hybrid"), tmp_path, steps=30, rate=0.01)
    for step in (1, 2, 3):
        name = f"acceptance_{step}"
        assert last[name] > first[name] + 0.05


def test_feature_loss_compares_the_last_hidden_states():
    plain, feature = training(), training(feature=2.0)
    block = stack([Block.of(random_pieces(0, 20, 9), 32)])
    with torch.no_grad():
        losses = [one.loss(one.module, block) for one in (feature, plain)]
        gained = (losses[0] - losses[1]) / 2.0
        steps = plain._steps(plain.module, block)
        lm_head = plain.target.get_output_embeddings().weight
        for step in steps:
            close(step.state @ lm_head.T, step.target)
            close(step.hidden @ plain.head.lm_head.weight.T, step.draft)
        wanted = 0.0
        for step, one in enumerate(steps):
            loss = smooth_l1_loss(one.hidden, one.state, reduction="none")
            wanted += 0.8**step * loss.mean(-1).sum()
    close(gained, wanted / sum(0.8**step for step in range(STEPS)))


def test_feature_loss_brings_hidden_states_closer(tmp_path: Path):
    """Closer to the target's than those of a head that was trained without it."""

    def distance(**options) -> float:
        task = training(loss="forward-kl", **options)
        pace = dict(warmup=3, learning_rate=0.01, evaluate=20)
        recipe = TrainingConfig(steps=20, batch=2, **pace)
        where = dict(devices=OneDevice(torch.device("cpu")))
        where["folder"] = tmp_path / str(len(options))
        data = Packer(Bytes(), TEXTS[:30], 64)
        for _ in Trainer(task, data, recipe, **where).run():
            pass
        block = stack(list(Packer(Bytes(), TEXTS[30:], 64).all(2)))
        with torch.no_grad():
            steps = task._steps(task.module, block)
        return sum(float((step.hidden - step.state).square().mean()) for step in steps)

    assert distance(feature=10.0) < 0.9 * distance()


def test_feature_loss_needs_the_hidden_size_of_the_target(tmp_path: Path):
    target = llama(0, layers=3)
    layer = LlamaConfig(**sizes(16, 32, 4, 2), vocab_size=VOCAB)
    options = dict(states=(0, 1, 3), target_hidden=32, draft_vocab=VOCAB, embeds=True)
    config = EagleConfig(llama=layer, **options)
    dump(EagleHead(config), torch.float32, target.config).write(tmp_path)
    training(target, draft=str(tmp_path))
    with pytest.raises(InvalidRequest, match="of 16 differs from the target's 32"):
        training(target, draft=str(tmp_path), feature=1.0)


def test_unroll_of_zero_is_refused():
    with pytest.raises(InvalidRequest, match="'unroll' must be at least 1"):
        HeadTraining(setting(llama(0)), EagleOptions(unroll=0))


@pytest.mark.parametrize("states", ["2,9", "1;2", "", "-1"])
def test_missing_layers_are_refused(states):
    with pytest.raises(InvalidRequest, match="'states' must be numbers from 0 to 3"):
        training(states=states)


def test_layers_can_be_chosen():
    assert training(states="0, 3").head.fc.in_features == 64
