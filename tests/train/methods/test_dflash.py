"""A head is trained on what it computes when it serves, by its weights; it learns."""

from functools import partial
from pathlib import Path

import pytest
import torch

import tiny_models
from foreword.draft.heads.block import BlockRequest
from foreword.draft.heads.dflash import DFlashBlocks, DFlashDrafter
from foreword.errors import InvalidRequest
from foreword.model import Model, Read
from foreword_train.data.packing import Block, Piece, stack
from foreword_train.losses import overlap, prefix_weights
from foreword_train.methods.ahead import pick
from foreword_train.methods.dflash import DFlashTask
from foreword_train.methods.masked import new_layout, target_layers
from foreword_train.registry import DFlashOptions
from pair import learn, llama, setting

LAYERS, ROWS = 4, 4


def task(name: str = "forward-kl", **options: object) -> DFlashTask:
    options = dict(layers=2, block=ROWS, anchors=40) | options
    return DFlashOptions(**options).begin(setting(llama(0, layers=LAYERS), loss=name))


def packed(*lengths: int, total: int = 40) -> Block:
    """Two blocks of records of these lengths, learnt from their third token on."""
    generator = torch.Generator().manual_seed(1)
    blocks = []
    for _ in range(2):
        pieces = []
        for length in lengths:
            ids = torch.randint(1, 300, (length,), generator=generator).tolist()
            pieces.append(Piece(ids, [False] * 2 + [True] * (length - 2)))
        blocks.append(Block.of(pieces, total))
    return stack(blocks)


close = partial(torch.testing.assert_close, atol=1e-3, rtol=1e-3)


@torch.no_grad()
def test_head_is_trained_as_it_serves():
    """At anchors in packed records it computes what it does for each record alone."""
    made = task()
    block = packed(12, 9, 11)
    predictions = made._predict(made.module, block, spread=True)
    target = Model(llama(0, layers=LAYERS))
    served = DFlashBlocks(made.head, Model(llama(0, layers=LAYERS)))
    anchors = pick(block, 40, ROWS - 1, spread=True)
    row = 0
    for number, at in anchors.valid.any(-1).nonzero().tolist():
        place = int(anchors.places[number, at])
        count = int(anchors.valid[number, at].sum())
        first = place - int(block.positions[number, place])
        tokens = block.tokens[number, first : place + 1 + count].tolist()
        target.open(1, len(tokens))
        read = Read(1, 0, tokens, keep=count + 1)
        logits, states = target.read_hidden([read], served.layout.states)
        target.close(1)
        served.open(1, 64)
        token = int(block.tokens[number, place])
        request = BlockRequest(1, token, states[: place - first])
        wanted = served.compute([request])[0][:count]
        served.close(1)
        rows = slice(row, row + count)
        close(predictions.draft[rows], wanted)
        close(predictions.target[rows], logits[:-1])
        row += count
    total = sum(3 * (length - 4) + 3 for length in (12, 9, 11))
    assert row == len(predictions.draft) == 2 * total


@pytest.mark.parametrize("decay", [2.0, 0.0])
@torch.no_grad()
def test_early_draft_tokens_weigh_more(decay):
    made, block = task("tv", decay=decay), packed(12, 9)
    predictions = made._predict(made.module, block, spread=True)
    losses = 1 - overlap(predictions.target, predictions.draft)
    if decay:
        weights = torch.exp(-predictions.depth / decay)
    else:
        tokens, valid = predictions.tokens, predictions.valid
        probabilities = predictions.draft.softmax(-1)[torch.arange(len(tokens)), tokens]
        table = torch.zeros(valid.shape).masked_scatter(valid, probabilities)
        weights = prefix_weights(table)[valid]
    expected = (weights * losses).sum() / weights.sum() * block.learnt.sum()
    torch.testing.assert_close(made.measure(made.module, block)["loss"], expected)
    assert len(weights.unique()) >= 3


@torch.no_grad()
def test_metrics_are_means_by_depth():
    made, block = task(), packed(12, 9)
    predictions = made._predict(made.module, block, spread=True)
    kept = overlap(predictions.target, predictions.draft)
    sums = made.measure(made.module, block)
    found = {name: float(one / block.learnt.sum()) for name, one in sums.items()}
    assert {f"acceptance_{depth}" for depth in (1, 2, 3)} < set(found)
    second = float(kept[predictions.depth == 1].mean())
    assert found["acceptance_2"] == pytest.approx(second, rel=1e-4)
    assert found["acceptance"] == pytest.approx(float(kept.mean()), rel=1e-4)
    valid = predictions.valid[predictions.valid.any(-1)]
    rows = kept.split(valid.sum(-1).tolist())
    mean = sum(float(row.cumprod(0).sum()) for row in rows) / len(rows)
    assert found["kept"] == pytest.approx(mean, rel=1e-4)


def test_gradients_reach_the_head_alone():
    made = task()
    made.loss(made.module, packed(12, 9)).backward()
    assert all(parameter.grad is None for parameter in made.target.parameters())
    assert all(parameter.grad is not None for parameter in made.head.parameters())
    assert float(made.head.fc.weight.grad.abs().sum()) > 0


def test_head_begins_as_the_last_layers_of_its_target():
    made = task()
    theirs = dict(made.target.model.named_parameters())
    names = ("mlp.down_proj", "self_attn.k_proj", "input_layernorm")
    for ours, last in ((0, 2), (1, 3)):
        for name in names:
            weight = made.head.get_parameter(f"layers.{ours}.{name}.weight")
            assert torch.equal(weight, theirs[f"layers.{last}.{name}.weight"])


def test_head_learns_and_is_served(tmp_path: Path):
    made = task("hybrid")
    first, last = learn(made, tmp_path, steps=15, rate=0.01)
    assert last["acceptance_1"] > first["acceptance_1"] + 0.05
    made.save(tmp_path / "head")
    target = Model(llama(0, layers=LAYERS))
    drafter = DFlashDrafter.load(tmp_path / "head", target, None)
    assert drafter.hidden_layers == made.layout.states
    options = DFlashOptions(draft=str(tmp_path / "head"), anchors=8)
    again = options.begin(setting(llama(0, layers=LAYERS)))
    assert again.parameters == made.parameters


@pytest.mark.parametrize("kind", ["gpt2", "gpt-neox", "opt", "cohere"])
def test_head_has_the_sizes_of_other_architectures(kind):
    target = tiny_models.build(kind)
    options = dict(layers=1, block=3, mask=0, sample_from_anchor=False)
    sizes = new_layout(target, **options).sizes
    assert sizes.hidden_size == target.config.hidden_size
    assert sizes.vocab_size == tiny_models.VOCAB
    assert sizes.head_dim * sizes.num_attention_heads == sizes.hidden_size
    assert sizes.intermediate_size > 0


def test_bad_options_are_refused():
    wrong = [("block", 1), ("block", 257), ("layers", 0), ("mask", 320)]
    for name, value in (*wrong, ("anchors", 0), ("decay", -1.0)):
        options = {name: value}
        with pytest.raises(InvalidRequest):
            task(**options)


def test_hidden_states_are_spread_over_the_layers():
    # the states that DFlash heads for Qwen3-8B read
    assert target_layers(36, 5) == (2, 10, 18, 26, 34)
    assert target_layers(8, 2) == (2, 6)
    assert target_layers(8, 1) == (5,)
    assert target_layers(2, 3) == (2,)
