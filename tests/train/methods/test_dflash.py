"""A head is trained on what it computes when it serves, with the weights of its
options; and it learns.
"""

from pathlib import Path

import pytest
import torch

import tiny_models
from foreword.draft.heads.block import BlockRequest
from foreword.draft.heads.dflash import DFlashBlocks, DFlashDrafter
from foreword.errors import InvalidRequest
from foreword.model import Model, Read
from foreword.train.data.packing import Block, Piece, stack
from foreword.train.losses import overlap, prefix_weights
from foreword.train.methods.ahead import pick
from foreword.train.methods.dflash import DFlashTask
from foreword.train.methods.masked import new_layout, target_layers
from foreword.train.registry import DFlashOptions
from pair import learn, llama, setting

LAYERS, ROWS = 4, 4


def task(name: str = "forward-kl", **options: object) -> DFlashTask:
    return DFlashOptions(
        **{"layers": 2, "block": ROWS, "anchors": 40, **options}
    ).begin(setting(llama(0, layers=LAYERS), loss=name))


def packed(*lengths: int, total: int = 40) -> Block:
    """Two blocks of records of these lengths, learnt from their third token on."""
    generator = torch.Generator().manual_seed(1)
    blocks = []
    for _ in range(2):
        pieces = [
            torch.randint(1, 300, (length,), generator=generator).tolist()
            for length in lengths
        ]
        blocks.append(
            Block.of(
                [Piece(ids, [False] * 2 + [True] * (len(ids) - 2)) for ids in pieces],
                total,
            )
        )
    return stack(blocks)


@torch.no_grad()
def test_head_is_trained_as_it_serves():
    """At anchors in packed records it computes what it computes when it serves each
    record alone.
    """
    made = task()
    block = packed(12, 9, 11)
    predictions = made._predict(made.module, block, spread=True)
    served, target = (
        DFlashBlocks(made.head, Model(llama(0, layers=LAYERS))),
        Model(llama(0, layers=LAYERS)),
    )
    anchors = pick(block, 40, ROWS - 1, spread=True)
    row = 0
    for number, at in anchors.valid.any(-1).nonzero().tolist():
        place, draft_tokens = (
            int(anchors.places[number, at]),
            int(anchors.valid[number, at].sum()),
        )
        first = place - int(block.positions[number, place])
        tokens = block.tokens[number, first : place + 1 + draft_tokens].tolist()
        target.open(1, len(tokens))
        logits, states = target.read_hidden(
            [Read(1, 0, tokens, keep=draft_tokens + 1)], served.layout.states
        )
        target.close(1)
        served.open(1, 64)
        distributions = served.compute(
            [BlockRequest(1, int(block.tokens[number, place]), states[: place - first])]
        )[0]
        served.close(1)
        torch.testing.assert_close(
            predictions.draft[row : row + draft_tokens],
            distributions[:draft_tokens],
            atol=1e-3,
            rtol=1e-3,
        )
        torch.testing.assert_close(
            predictions.target[row : row + draft_tokens],
            logits[:-1],
            atol=1e-3,
            rtol=1e-3,
        )
        row += draft_tokens
    assert (
        row
        == len(predictions.draft)
        == 2 * sum(3 * (length - 4) + 3 for length in (12, 9, 11))
    )


@pytest.mark.parametrize("decay", [2.0, 0.0])
@torch.no_grad()
def test_early_draft_tokens_weigh_more(decay):
    made, block = task("tv", decay=decay), packed(12, 9)
    predictions = made._predict(made.module, block, spread=True)
    losses = 1 - overlap(predictions.target, predictions.draft)
    if decay:
        weights = torch.exp(-predictions.depth / decay)
    else:
        probabilities = predictions.draft.softmax(-1)[
            torch.arange(len(predictions.tokens)), predictions.tokens
        ]
        table = torch.zeros(predictions.valid.shape).masked_scatter(
            predictions.valid, probabilities
        )
        weights = prefix_weights(table)[predictions.valid]
    expected = (weights * losses).sum() / weights.sum() * block.learnt.sum()
    torch.testing.assert_close(made.measure(made.module, block)["loss"], expected)
    assert len(weights.unique()) >= 3


@torch.no_grad()
def test_metrics_are_means_by_depth():
    made, block = task(), packed(12, 9)
    predictions, count = (
        made._predict(made.module, block, spread=True),
        block.learnt.sum(),
    )
    kept = overlap(predictions.target, predictions.draft)
    found = {
        name: float(value / count)
        for name, value in made.measure(made.module, block).items()
    }
    assert {f"acceptance_{depth}" for depth in (1, 2, 3)} < set(found)
    assert found["acceptance_2"] == pytest.approx(
        float(kept[predictions.depth == 1].mean()), rel=1e-4
    )
    assert found["acceptance"] == pytest.approx(float(kept.mean()), rel=1e-4)
    rows, mean = (
        kept.split(predictions.valid[predictions.valid.any(-1)].sum(-1).tolist()),
        0.0,
    )
    for row in rows:
        mean += float(row.cumprod(0).sum()) / len(rows)
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
    for ours, last in ((0, 2), (1, 3)):
        for name in (
            "mlp.down_proj.weight",
            "self_attn.k_proj.weight",
            "input_layernorm.weight",
        ):
            assert torch.equal(
                dict(made.head.named_parameters())[f"layers.{ours}.{name}"],
                theirs[f"layers.{last}.{name}"],
            )


def test_head_learns_and_is_served(tmp_path: Path):
    made = task("hybrid")
    first, last = learn(made, tmp_path, steps=15, rate=0.01)
    assert last["acceptance_1"] > first["acceptance_1"] + 0.05
    made.save(tmp_path / "head")
    drafter = DFlashDrafter.load(
        tmp_path / "head", Model(llama(0, layers=LAYERS)), None
    )
    assert drafter.hidden_layers == made.layout.states
    again = DFlashOptions(draft=str(tmp_path / "head"), anchors=8).begin(
        setting(llama(0, layers=LAYERS))
    )
    assert again.parameters == made.parameters


@pytest.mark.parametrize("kind", ["gpt2", "gpt-neox", "opt", "cohere"])
def test_head_has_the_sizes_of_other_architectures(kind):
    target = tiny_models.build(kind)
    sizes = new_layout(
        target, layers=1, block=3, mask=0, sample_from_anchor=False
    ).sizes
    assert (sizes.hidden_size, sizes.vocab_size) == (
        target.config.hidden_size,
        tiny_models.VOCAB,
    )
    assert sizes.head_dim * sizes.num_attention_heads == sizes.hidden_size
    assert sizes.intermediate_size > 0


def test_bad_options_are_refused():
    for options in (
        {"block": 1},
        {"block": 257},
        {"layers": 0},
        {"mask": 320},
        {"anchors": 0},
        {"decay": -1.0},
    ):
        with pytest.raises(InvalidRequest):
            task(**options)


def test_hidden_states_are_spread_over_the_layers():
    # the states that DFlash heads for Qwen3-8B read
    assert target_layers(36, 5) == (2, 10, 18, 26, 34)
    assert target_layers(8, 2) == (2, 6)
    assert target_layers(8, 1) == (5,)
    assert target_layers(2, 3) == (2,)
