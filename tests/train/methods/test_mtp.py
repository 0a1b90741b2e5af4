"""A layer of multi-token prediction reads alike in training and drafts; it learns."""

import pytest
import torch

from foreword.draft.mtp.mtp import MtpDrafter
from foreword.draft.mtp.mtp_checkpoint import dump, load
from foreword.errors import InvalidRequest, ModelError
from foreword_train.data.packing import Block, stack
from foreword_train.methods.mtp import MtpTask
from foreword_train.registry import MtpOptions
from pair import check_served, learn, llama, random_pieces, setting
from tiny_models import differing

STEPS = 3


def training(target=None, **options) -> MtpTask:
    context = setting(target or llama(0, layers=3), "forward-kl")
    return MtpTask(context, MtpOptions(unroll=STEPS, **options))


def test_layer_is_trained_as_it_serves(tmp_path):
    task = training()
    layer = tmp_path / "layer"
    task.save(layer)
    check_served(task, lambda target: MtpDrafter.load(layer, target, None))


def test_gradients_reach_the_layer_alone():
    task = training()
    block = stack([Block.of(random_pieces(3, 20), 20)])
    task.loss(task.module, block).backward()
    assert all(parameter.grad is None for parameter in task.target.parameters())
    grads = [parameter.grad for parameter in task.head.parameters()]
    assert all(grad is not None and grad.any() for grad in grads)


def test_layer_learns_its_target(tmp_path):
    first, last = learn(training(), tmp_path, steps=30, rate=0.01)
    for step in (1, 2, 3):
        name = f"acceptance_{step}"
        assert last[name] > first[name] + 0.05


def test_new_layer_is_written_and_read_back(tmp_path):
    task = training()
    task.save(tmp_path / "layer")
    again = load(tmp_path / "layer", task.target, torch.float32)
    wanted = task.head.state_dict()
    assert differing(wanted, again.state_dict()) == []
    more = training(draft=str(tmp_path / "layer"))
    assert more.head.depth == 1


@pytest.mark.parametrize(
    ("other", "named"),
    [
        (llama(0, layers=2), "num_target_layers is 3 there and 2"),
        (llama(0, layers=3, hidden=64), "hidden_size is 32 there and 64"),
    ],
)
def test_layer_of_another_target_is_refused_by_name(tmp_path, other, named):
    dump(training().head, torch.float32, llama(0, layers=3).config).write(tmp_path)
    with pytest.raises(ModelError, match=named):
        load(tmp_path, other, torch.float32)


def test_no_steps_are_refused():
    context = setting(llama(0, layers=3), "forward-kl")
    with pytest.raises(InvalidRequest, match="'unroll' must be at least 1"):
        MtpTask(context, MtpOptions(unroll=0))
