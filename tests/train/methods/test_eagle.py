"""Training-time test: a head reads the same while it learns and while it drafts, and it
learns.
"""

from pathlib import Path

import pytest
import torch
from transformers import LlamaConfig

from foreword.draft.heads.eagle import EagleDrafter
from foreword.draft.heads.eagle_checkpoint import dump
from foreword.draft.heads.eagle_model import EagleConfig, EagleHead
from foreword.errors import InvalidRequest
from foreword.model import Model
from foreword.train.data.packing import Block, Packer, stack
from foreword.train.devices import OneDevice
from foreword.train.methods.eagle import HeadTraining
from foreword.train.registry import EagleOptions
from foreword.train.trainer import Trainer, TrainingConfig
from pair import (
    TEXTS,
    VOCAB,
    Bytes,
    check_packed,
    learn,
    llama,
    random_pieces,
    served_logits,
    setting,
)
from tiny_sizes import sizes

STEPS = 3


def training(target=None, loss: str = "forward-kl", **options) -> HeadTraining:
    return HeadTraining(
        setting(target or llama(0, layers=3), loss),
        EagleOptions(unroll=STEPS, **options),
    )


def test_head_is_trained_as_it_serves():
    """The plain definition: read the text up to a token, then the next tokens as a
    chain of draft tokens.
    """
    hf = llama(0, layers=3)
    task = training(hf)
    (piece,) = random_pieces(3, 14)
    with torch.no_grad():
        trained = [
            step.draft
            for step in task._steps(task.module, stack([Block.of([piece], 14)]))
        ]
    target = Model(llama(0, layers=3))
    for end in (3, 8):
        drafter = EagleDrafter(training(hf).head, target)
        found = served_logits(drafter, target, piece.tokens, end, STEPS)
        for step in range(STEPS):
            # The row of token end - 1 and its follower; rows begin where a learnt token
            # is two places and a step ahead.
            torch.testing.assert_close(
                found[step][0], trained[step][end - 1], atol=1e-4, rtol=1e-4
            )


def test_packed_records_are_learnt_as_if_alone():
    check_packed(training(), random_pieces(0, 7, 12, 9))


def test_gradients_reach_the_head_alone():
    task = training()
    task.loss(task.module, stack([Block.of(random_pieces(0, 20), 20)])).backward()
    assert all(parameter.grad is None for parameter in task.target.parameters())
    assert {
        name
        for name, p in task.head.named_parameters()
        if p.grad is None or not p.grad.abs().sum()
    } == set()


def test_draft_vocabulary_is_the_most_frequent_tokens():
    # the counts of `setting` fall with the number of the token
    task = training(draft_vocab=100)
    assert torch.equal(task.head.tokens, torch.arange(100))
    assert task.head.t2d.sum() == 100
    block = stack([Block.of(random_pieces(0, 20), 20)])
    with torch.no_grad():
        found = task.measure(task.module, block)
    assert 0 < found["acceptance_1"] < 18
    assert sorted(found) == sorted(
        f"{name}_{step}" for name in ("acceptance", "agreement") for step in (1, 2, 3)
    )


def test_saved_head_can_be_trained_further(tmp_path: Path):
    task = training()
    task.save(tmp_path)
    again = training(draft=str(tmp_path))
    for name, tensor in task.head.state_dict().items():
        assert torch.equal(tensor, again.head.state_dict()[name]), name


def test_head_learns_its_target(tmp_path: Path):
    first, last = learn(training(loss="hybrid"), tmp_path, steps=30, rate=0.01)
    assert all(
        last[f"acceptance_{step}"] > first[f"acceptance_{step}"] + 0.05
        for step in (1, 2, 3)
    )


def test_feature_loss_compares_the_last_hidden_states():
    plain, feature = training(), training(feature=2.0)
    block = stack([Block.of(random_pieces(0, 20, 9), 32)])
    with torch.no_grad():
        gained = (
            feature.loss(feature.module, block) - plain.loss(plain.module, block)
        ) / 2.0
        steps = plain._steps(plain.module, block)
        lm_head = plain.target.get_output_embeddings().weight
        for step in steps:
            torch.testing.assert_close(
                step.state @ lm_head.T, step.target, atol=1e-4, rtol=1e-4
            )
            torch.testing.assert_close(
                step.hidden @ plain.head.lm_head.weight.T,
                step.draft,
                atol=1e-4,
                rtol=1e-4,
            )
        off = [(step.hidden - step.state).abs() for step in steps]
        smooth = [
            torch.where(one < 1, one.square() / 2, one - 0.5).mean(-1).sum()
            for one in off
        ]
    wanted = sum(0.8**step * one for step, one in enumerate(smooth)) / sum(
        0.8**step for step in range(STEPS)
    )
    torch.testing.assert_close(gained, wanted, atol=1e-4, rtol=1e-4)


def test_feature_loss_brings_hidden_states_closer(tmp_path: Path):
    """Closer to the target's than those of a head that was trained without it."""

    def distance(**options) -> float:
        task = training(loss="forward-kl", **options)
        recipe = TrainingConfig(
            steps=20, batch=2, warmup=3, learning_rate=0.01, evaluate=20
        )
        devices, folder = OneDevice(torch.device("cpu")), tmp_path / str(len(options))
        for _ in Trainer(
            task,
            Packer(Bytes(), TEXTS[:30], 64),
            recipe,
            folder=folder,
            devices=devices,
        ).run():
            pass
        with torch.no_grad():
            steps = task._steps(
                task.module, stack(list(Packer(Bytes(), TEXTS[30:], 64).all(2)))
            )
        return sum(float((step.hidden - step.state).square().mean()) for step in steps)

    assert distance(feature=10.0) < 0.9 * distance()


def test_feature_loss_needs_the_hidden_size_of_the_target(tmp_path: Path):
    target = llama(0, layers=3)
    layer = LlamaConfig(**sizes(16, 32, 4, 2), vocab_size=VOCAB)
    config = EagleConfig(
        llama=layer, states=(0, 1, 3), target_hidden=32, draft_vocab=VOCAB, embeds=True
    )
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
