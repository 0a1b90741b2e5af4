"""Distillation: packed records are separate, distributions right, drafts learn."""

from pathlib import Path

import pytest
import torch
from transformers import AutoModelForCausalLM, LlamaConfig

import tiny_models
from foreword.errors import InvalidRequest, ModelError
from foreword.model.architectures import linears, shape
from foreword.model.layers import layers_of
from foreword_train.data.packing import Block, stack
from foreword_train.losses import LOSSES
from foreword_train.methods import lm
from foreword_train.registry import LmOptions
from grids import slow_case
from pair import VOCAB, check_packed, learn, llama, random_pieces, setting
from tiny_sizes import sizes


def distillation(draft=None, name="forward-kl", temperature=1.0, on_policy=0.0):
    given = setting(llama(0), name, temperature)
    return lm.Distillation(given, LmOptions(on_policy=on_policy), draft or llama(1))


def test_packed_records_are_learnt_as_if_alone():
    check_packed(distillation(), random_pieces(0, 7, 12, 5))


def test_only_learnt_tokens_count():
    piece = random_pieces(0, 9)[0]
    task = distillation()
    both, text = (task.target, task.module), torch.tensor([piece.tokens])
    logits = [model(text).logits[0, 1:-1] for model in both]
    found = task.loss(task.module, stack([Block.of([piece], 16)]))
    torch.testing.assert_close(found, LOSSES["forward-kl"](*logits).sum())


def test_temperature_applies_to_both_distributions():
    block = stack([Block.of(random_pieces(0, 9), 16)])
    task = distillation(temperature=0.5)
    both = (task.target, task.module)
    logits = [model(block.tokens).logits[:, 1:8] / 0.5 for model in both]
    wanted = LOSSES["forward-kl"](*logits).sum()
    torch.testing.assert_close(task.loss(task.module, block), wanted)
    usual = distillation().measure(task.module, block)["acceptance"]
    found = task.measure(task.module, block)["acceptance"]  # always at 1
    torch.testing.assert_close(found, usual)


def test_the_target_as_draft_is_always_accepted():
    task = distillation(llama(0))
    block = stack([Block.of(random_pieces(0, 20), 20)])
    with torch.no_grad():
        measures = task.measure(task.module, block)
    found = {name: float(value) for name, value in measures.items()}
    wanted = {"loss": 0, "acceptance": 18, "agreement": 18}
    assert found == pytest.approx(wanted, abs=1e-4)


def test_gradients_reach_the_draft_alone():
    task = distillation()
    task.loss(task.module, stack([Block.of(random_pieces(0, 20), 20)])).backward()
    assert all(parameter.grad is None for parameter in task.target.parameters())
    assert all(parameter.grad.abs().sum() > 0 for parameter in task.module.parameters())


def test_longer_padded_vocabulary_is_cut():
    wide = llama(0)
    wide.resize_token_embeddings(VOCAB + 64, mean_resizing=False)
    block = stack([Block.of(random_pieces(0, 20), 20)])
    task = lm.Distillation(setting(wide, "tv"), LmOptions(), llama(0))
    assert task.loss(task.module, block).item() == pytest.approx(0, abs=1e-4)


@pytest.mark.parametrize(("share", "expected"), [(0.0, 0), (0.5, 8), (1.0, 16)])
def test_share_of_batches_written_by_the_draft(share, expected):
    task = distillation(on_policy=share)
    block = stack([Block.of(random_pieces(0, 12), 16)])
    written = sum(task.data(block, seed) is not block for seed in range(16))
    assert abs(written - expected) <= (3 if 0 < share < 1 else 0)


def test_bad_options_and_drafts_are_refused():
    with pytest.raises(InvalidRequest, match="'on_policy' must be in"):
        distillation(on_policy=1.5)
    recurrent = llama(1)
    recurrent._is_stateful = True
    with pytest.raises(ModelError, match="recurrent"):
        distillation(recurrent)
    with pytest.raises(ModelError, match="cannot load a model"):
        lm.load("/nowhere/at/all", torch.float32)


OFF_POLICY = slow_case("hybrid", 0.0)


@pytest.mark.parametrize(
    ("name", "on_policy"), [("reverse-kl", 0.0), ("hybrid", 1.0), OFF_POLICY]
)
def test_draft_learns_its_target(tmp_path: Path, name, on_policy):
    task = distillation(name=name, on_policy=on_policy)
    first, last = learn(task, tmp_path, steps=15, rate=0.02)
    assert last["acceptance"] > first["acceptance"] + 0.05


def test_smaller_config_keeps_its_proportions():
    config = LlamaConfig(**sizes(64, 160, 8, 4, 4))
    same = lm.smaller(config, layers=2)
    assert same.num_hidden_layers == 2
    assert (same.hidden_size, same.intermediate_size) == (64, 160)
    half = lm.smaller(config, layers=1, hidden=32)
    assert (half.hidden_size, half.intermediate_size) == (32, 80)
    heads = (half.num_attention_heads, half.num_key_value_heads, half.head_dim)
    assert heads == (4, 2, 8)
    odd = lm.smaller(config, hidden=24)
    assert (odd.num_attention_heads, odd.num_key_value_heads) == (3, 3)
    assert config.num_hidden_layers == 4
    with pytest.raises(InvalidRequest, match="multiples of 8"):
        lm.smaller(config, hidden=30)


@pytest.mark.parametrize("kind", ["gpt2", "gpt-neox", "opt", "cohere"])
def test_smaller_config_of_other_architectures(kind):
    large = tiny_models.build(kind)
    small = AutoModelForCausalLM.from_config(lm.smaller(large.config, hidden=32))
    assert small(torch.tensor([[1, 2, 3]])).logits.shape == (1, 3, tiny_models.VOCAB)
    (found,), wanted = (
        [shape(linears(layer)["down"][0]) for layer in layers_of(model)]
        for model in (small, large)
    )
    assert found == (32, wanted[0][1] // 2)


def test_new_draft_follows_the_seed(tmp_path: Path):
    llama().save_pretrained(tmp_path)
    torch.manual_seed(3)
    before = torch.get_rng_state()
    first, again, other = (lm.new(tmp_path, hidden=16, seed=seed) for seed in (0, 0, 1))
    assert torch.equal(first.lm_head.weight, again.lm_head.weight)
    assert not torch.equal(first.lm_head.weight, other.lm_head.weight)
    assert torch.equal(torch.get_rng_state(), before)
