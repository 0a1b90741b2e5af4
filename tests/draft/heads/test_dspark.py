"""The token before betters a draft token through two tables; folders of others."""

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

import folders
from drafters import AT_ONCE, check_same, grown
from foreword.draft.heads.block import BlockRequest
from foreword.draft.heads.dspark import DSparkBlocks, DSparkDrafter, DSparkHead
from foreword.draft.heads.masked import Layout
from foreword.errors import ModelError
from foreword.model import Read
from foreword.model.head_layers import Qwen3Config
from foreword.model.loading.checkpoint import Checkpoint
from foreword.sampling.streams import NoiseStreams
from foreword.types import Batch, SamplingParams
from grids import NEEDS_C
from running import Case, prompts, target
from tiny_sizes import HEAD, sizes

SIZES = sizes(384, 96, 2, 2, 1, **HEAD)
RANK = 6


def head(*, rank: int = RANK, **options: bool) -> DSparkHead:
    torch.manual_seed(0)
    config = Qwen3Config(**SIZES)
    layout = Layout(config, (3, 6), 4, 0, sample_from_anchor=True, depth=8)
    return DSparkHead(layout, rank, **options)


@pytest.fixture
def folder(tmp_path) -> Path:
    head().dump(torch.float32).write(tmp_path / "head")
    return tmp_path / "head"


@torch.inference_mode()
def test_each_draft_token_is_bettered_by_token_before_it():
    made = head()
    states = torch.randn(5, 768, generator=torch.Generator().manual_seed(1))
    blocks = DSparkBlocks(made, target())
    blocks.open(1, 32)
    blocks.queue(BlockRequest(1, 9, states))
    distributions = blocks.block(1)
    assert distributions.shape == (4, 8192)
    fresh = head()
    table = fresh.markov_head.markov_w1.weight @ fresh.markov_head.markov_w2.weight.T
    first = blocks.read([Read(1, 5, [9])])
    torch.testing.assert_close(
        first[0], distributions[0] + table[9], atol=1e-4, rtol=1e-4
    )
    level = blocks.read([Read(1, 6, [20, 21], [-1, -1], 2)])
    torch.testing.assert_close(
        level, distributions[[1, 1]] + table[[20, 21]], atol=1e-4, rtol=1e-4
    )
    deeper = blocks.read([Read(1, 6, [22], [-1, -1, 1], 1, held=2)])
    torch.testing.assert_close(
        deeper, distributions[[2]] + table[[22]], atol=1e-4, rtol=1e-4
    )


@NEEDS_C
@pytest.mark.parametrize("most", [1, 6, 24])
@pytest.mark.parametrize("temperature", [0.0, 0.7, 1.3])
def test_all_levels_at_once_grow_the_tree_that_levels_grow(
    temperature, most, monkeypatch
):
    """In C from the table and the block; and the table is held once."""

    def start():
        drafter = DSparkDrafter(DSparkBlocks(head(rank=16), target("bfloat16")))
        assert not hasattr(drafter.blocks._markov, "markov_w2")
        params = SamplingParams(temperature=temperature, seed=4, max_tokens=20)
        one = Case(prompts()[1], params).request(target("bfloat16").eos)
        noise = torch.Generator().manual_seed(1)
        states = torch.randn(len(one.tokens) - 1, 768, generator=noise)
        drafter.on_hidden_states(one, 0, states)
        return drafter, one, Batch((one,), NoiseStreams(8192, shared=True))

    by_level = grown(start, most, monkeypatch, AT_ONCE)
    assert len(by_level[0]) == most
    check_same(grown(start, most, monkeypatch), by_level)


def test_confidence_sees_token_before_and_not_draft_token():
    made = head()
    hidden = torch.randn(3, 384)
    weight, bias = made.confidence_head.proj.weight[0], made.confidence_head.proj.bias
    known = torch.cat([hidden, made.markov_head.markov_w1.weight[[4, 5, 6]]], -1)
    torch.testing.assert_close(
        made.confidence(hidden, torch.tensor([4, 5, 6])), known @ weight + bias
    )
    alone = head(assured_by_token=False)
    assert alone.confidence_head.proj.weight.shape == (1, 384)
    assert torch.equal(
        alone.confidence(hidden, torch.tensor([4, 5, 6])),
        alone.confidence(hidden, torch.tensor([7, 8, 9])),
    )
    assert head(assured=False).confidence(hidden, torch.tensor([4, 5, 6])) is None


def test_tensors_and_config_are_those_of_the_published_layout(folder):
    tensors = load_file(folder / "model.safetensors")
    config = json.loads((folder / "config.json").read_text())
    assert tensors["markov_head.markov_w1.weight"].shape == (8192, RANK)
    assert tensors["markov_head.markov_w2.weight"].shape == (8192, RANK)
    assert tensors["confidence_head.proj.weight"].shape == (1, 384 + RANK)
    assert tensors["confidence_head.proj.bias"].shape == (1,)
    assert config["architectures"] == ["Qwen3DSparkModel"]
    assert config["target_layer_ids"] == [2, 5]
    assert config["mask_token_id"] == 0
    assert config["block_size"] == 4
    assert (config["markov_rank"], config["markov_head_type"]) == (RANK, "vanilla")
    assert config["enable_confidence_head"] is True
    assert config["confidence_head_with_markov"] is True


@pytest.mark.parametrize(
    "options", [{}, {"assured": False}, {"assured_by_token": False}]
)
def test_what_was_written_is_read(tmp_path, options):
    made = head(**options)
    made.dump(torch.float32).write(tmp_path)
    found = DSparkHead.read(Checkpoint.read(tmp_path))
    assert found.layout.sample_from_anchor
    assert found.layout.draft_tokens == 4
    assert found.layout.states == (3, 6)
    assert found.state_dict().keys() == made.state_dict().keys()
    for name, tensor in made.state_dict().items():
        assert torch.equal(found.state_dict()[name], tensor)


def test_the_layout_of_speculators_says_the_same(folder):
    config = json.loads((folder / "config.json").read_text())
    foreign = {
        "speculators_model_type": "dspark",
        "transformer_layer_config": {name: config[name] for name in SIZES},
        "aux_hidden_state_layer_ids": [3, 6],
        "sample_from_anchor": False,
    }
    same = "block_size mask_token_id markov_rank markov_head_type"
    for name in (*same.split(), "enable_confidence_head"):
        foreign[name] = config[name]
    (folder / "config.json").write_text(json.dumps(foreign))
    drafter = DSparkDrafter.load(folder, target(), None)
    assert (drafter.hidden_layers, drafter.deep) == ((3, 6), 3)


@pytest.mark.parametrize(
    ("config", "tensors", "said"),
    [
        ({"architectures": ["DFlashDraftModel"]}, {}, "as a Qwen3DSparkModel"),
        ({"markov_rank": 0}, {}, "vanilla Markov head"),
        ({"markov_head_type": "rnn"}, {}, "vanilla Markov head"),
        ({"markov_rank": 7}, {}, "has the shape"),
        ({"mask_token_id": None}, {}, "has no mask_token_id"),
        ({"enable_confidence_head": False}, {}, "holds confidence_head.proj.bias"),
        ({}, {"markov_head.markov_w2.weight": None}, "lacks markov_head.markov_w2"),
    ],
)
def test_a_folder_that_does_not_fit_is_refused(folder, config, tensors, said):
    folders.change(folder, config, tensors)
    with pytest.raises(ModelError, match=said):
        DSparkDrafter.load(folder, target(), None)
