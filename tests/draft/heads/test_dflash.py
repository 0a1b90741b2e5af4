"""The head computes what its definition says, and its folders are those of others."""

import copy
import json
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from safetensors.torch import load_file

import folders
from foreword.draft.heads.block import BlockRequest
from foreword.draft.heads.dflash import DFlashBlocks, DFlashDrafter, DFlashHead
from foreword.draft.heads.masked import Layout
from foreword.draft.heads.masked_runtime import NativeLayers
from foreword.draft.heads.reach import Reach
from foreword.errors import InvalidRequest, ModelError
from foreword.model.head_layers import Qwen3Config
from foreword.model.loading.checkpoint import Checkpoint
from foreword.native.forward import reason
from running import draft, target
from tiny_sizes import FULL, HEAD, SLIDING, sizes

SIZES = sizes(384, 96, 6, 2, 2, **HEAD)
BLOCK, MASK, STATES = 4, 3, (2, 5)
BOTH = ("float32", "bfloat16")


def head(reach: Reach | None = None, **changes: object) -> DFlashHead:
    torch.manual_seed(0)
    config = Qwen3Config(**{**SIZES, **changes})
    options = dict(sample_from_anchor=False, depth=8, reach=reach or Reach())
    made = DFlashHead(Layout(config, STATES, BLOCK, MASK, **options))
    for parameter in made.parameters():
        torch.nn.init.normal_(parameter, 0.5 if parameter.dim() == 1 else 0.0, 0.2)
    return made


@pytest.fixture
def folder(tmp_path) -> Path:
    head().dump(torch.float32).write(tmp_path / "head")
    return tmp_path / "head"


def defined(
    made: DFlashHead,
    states: torch.Tensor,
    anchor: int,
    unseen: Callable[[int, int, int], bool] = lambda layer, row, key: False,
) -> torch.Tensor:
    """The logits of a block after a text with target `states`, head by head."""
    context = made.hidden_norm(F.linear(states, made.fc.weight))
    x = target().embed(torch.tensor([anchor] + [MASK] * (BLOCK - 1)))
    length = len(states)
    angles = torch.arange(length + BLOCK)[:, None] * 10_000.0 ** (
        -torch.arange(0, 32, 2) / 32
    )
    cos, sin = (torch.cat([part, part], -1) for part in (angles.cos(), angles.sin()))

    def turned(rows: torch.Tensor, where: slice) -> torch.Tensor:
        half = torch.cat([-rows[:, 16:], rows[:, :16]], -1)
        return rows * cos[where] + half * sin[where]

    for depth, layer in enumerate(made.layers):
        places = range(length + BLOCK)
        hidden = torch.tensor(
            [[unseen(depth, row, key) for key in places] for row in places[length:]]
        )
        own, attention = layer.input_layernorm(x), layer.self_attn
        seen = torch.cat([context, own])
        outs = []
        for number in range(6):
            mine = slice(32 * number, 32 * number + 32)
            shared = slice(32 * (number // 3), 32 * (number // 3) + 32)
            query = attention.q_norm(own @ attention.q_proj.weight[mine].T)
            key = attention.k_norm(seen @ attention.k_proj.weight[shared].T)
            value = seen @ attention.v_proj.weight[shared].T
            scores = (
                turned(query, slice(length, None))
                @ turned(key, slice(None)).T
                / 32**0.5
            )
            scores = scores.masked_fill(hidden, -torch.inf)
            outs.append(scores.softmax(-1) @ value)
        x = x + torch.cat(outs, -1) @ attention.o_proj.weight.T
        x = x + layer.mlp(layer.post_attention_layernorm(x))
    return target().lm_head(made.norm(x)[1:])


@torch.inference_mode()
def test_a_block_is_what_the_definition_says_in_every_round():
    plain, blocks = head(), DFlashBlocks(head(), target())
    generator = torch.Generator().manual_seed(1)
    states = {one: torch.randn(40, 2 * 384, generator=generator) for one in (7, 8)}
    for one in states:
        blocks.open(one, 64)
    shown = {7: 0, 8: 0}
    for upto in ({7: 13, 8: 1}, {7: 14, 8: 1}, {7: 18, 8: 30}, {7: 40, 8: 40}):
        found = blocks.compute(
            [
                BlockRequest(one, 100 + end, states[one][shown[one] : end], shown[one])
                for one, end in upto.items()
            ]
        )
        for distributions, (one, end) in zip(found, upto.items(), strict=True):
            torch.testing.assert_close(
                distributions,
                defined(plain, states[one][:end], 100 + end),
                atol=2e-3,
                rtol=1e-4,
            )
        shown = upto


MIXED = {"layer_types": [SLIDING, FULL], "sliding_window": 9}
ALL = {"layer_types": [SLIDING, SLIDING], "sliding_window": 9}
LATER = {"use_sliding_window": True, "sliding_window": 9, "max_window_layers": 1}
JETSPEC = {"mask_token_id": MASK, "target_layer_ids": [1, 4], "causal_head": True}


@pytest.mark.parametrize(
    ("config", "windows", "causal", "in_c"),
    [
        (MIXED, (9, 0), (True, False), False),
        ({**MIXED, "is_causal": False}, (9, 0), (False, False), False),
        ({**MIXED, "is_causal": True}, (9, 0), (True, True), True),
        (ALL, (9, 9), (True, True), True),
        (LATER, (0, 9), (False, True), False),
        ({"dflash_config": JETSPEC}, (0, 0), (True, True), True),
    ],
)
@torch.inference_mode()
def test_layers_attend_to_what_the_config_says(folder, config, windows, causal, in_c):
    folders.change(folder, config, {})
    made = DFlashHead.read(Checkpoint.read(folder))
    made.dump(torch.float32).write(folder / "again")
    assert DFlashHead.read(Checkpoint.read(folder / "again")).layout == made.layout
    states = torch.randn(40, 2 * 384, generator=torch.Generator().manual_seed(1))

    def unseen(layer: int, row: int, key: int) -> bool:
        far = windows[layer] and row - key >= windows[layer]
        return bool(far or (causal[layer] and key > row))

    blocks = {dtype: DFlashBlocks(copy.deepcopy(made), target(dtype)) for dtype in BOTH}
    for end, start in ((5, 0), (30, 5), (40, 30)):
        wanted = defined(made, states[:end], 100 + end, unseen)
        ask = BlockRequest(7, 100 + end, states[start:end], start)
        for dtype, one in blocks.items():
            if start == 0:
                one.open(7, 64)
            found = one.compute([ask])[0].float()
            error = (found - wanted).pow(2).mean().sqrt() / wanted.std()
            assert error < (1e-4 if dtype == "float32" else 0.03)
    executor = blocks["bfloat16"].executor
    assert isinstance(executor, NativeLayers) == (in_c and reason() is None)


def test_tensors_and_config_are_those_of_the_published_layout(folder):
    tensors = load_file(folder / "model.safetensors")
    config = json.loads((folder / "config.json").read_text())
    parts = (
        "input_layernorm post_attention_layernorm mlp.gate_proj mlp.up_proj "
        "mlp.down_proj"
    ).split() + [
        f"self_attn.{name}"
        for name in ("q_proj", "k_proj", "v_proj", "o_proj", "q_norm", "k_norm")
    ]
    layers = {f"layers.{number}.{part}.weight" for number in (0, 1) for part in parts}
    assert set(tensors) == layers | {"fc.weight", "hidden_norm.weight", "norm.weight"}
    assert tensors["fc.weight"].shape == (384, 768)
    assert tensors["layers.1.self_attn.k_proj.weight"].shape == (64, 384)
    assert config["architectures"] == ["DFlashDraftModel"]
    states = {"mask_token_id": MASK, "target_layer_ids": [1, 4]}
    assert config["dflash_config"] == states
    assert config["block_size"] == BLOCK
    assert config["num_target_layers"] == 8
    assert config["model_type"] == "qwen3"
    assert config["rope_theta"] == config["rope_parameters"]["rope_theta"] == 10_000.0
    assert "sample_from_anchor" not in config


def test_what_was_written_is_read(folder):
    found = DFlashHead.read(Checkpoint.read(folder))
    assert found.layout.states == STATES
    assert found.layout.block == BLOCK
    assert found.layout.mask == MASK
    assert not found.layout.sample_from_anchor
    for name, tensor in head().state_dict().items():
        assert torch.equal(found.state_dict()[name], tensor)


def test_the_layout_of_speculators_says_the_same(folder):
    config = json.loads((folder / "config.json").read_text())
    layers = {
        name: config[name]
        for name in (*SIZES, "rms_norm_eps", "rope_parameters", "model_type")
    }
    foreign = {
        "speculators_model_type": "dflash",
        "transformer_layer_config": layers,
        "block_size": BLOCK,
        "aux_hidden_state_layer_ids": list(STATES),
        "mask_token_id": MASK,
        "sample_from_anchor": True,
    }
    (folder / "config.json").write_text(json.dumps(foreign))
    found = DFlashHead.read(Checkpoint.read(folder)).layout
    assert found.states == STATES
    assert found.block == BLOCK
    assert found.mask == MASK
    assert found.sample_from_anchor
    assert found.draft_tokens == BLOCK
    assert found.sizes.num_key_value_heads == 2


def test_the_anchor_may_draft_token_itself(folder):
    folders.configured(folder, sample_from_anchor=True)
    states = torch.zeros(3, 768)
    distributions = []
    for source in (head(), DFlashHead.read(Checkpoint.read(folder))):
        blocks = DFlashBlocks(source, target())
        blocks.open(1, 16)
        distributions.append(blocks.compute([BlockRequest(1, 9, states)])[0])
    assert len(distributions[0]) == BLOCK - 1
    assert len(distributions[1]) == BLOCK
    torch.testing.assert_close(distributions[1][1:], distributions[0])


EMBEDDINGS = {"embed_tokens.weight": torch.zeros(2, 2)}
"""The target's are used."""
TO_TARGET = {"d2t": torch.zeros(8192, dtype=torch.int64)}
FROM_TARGET = {"t2d": torch.ones(8192, dtype=torch.bool)}
"""Maps of the full vocabulary."""


@pytest.mark.parametrize(
    "tensors",
    [EMBEDDINGS, TO_TARGET | FROM_TARGET, TO_TARGET, FROM_TARGET],
    ids=", ".join,
)
def test_tensors_that_a_head_does_not_need_are_left_aside(folder, tensors):
    folders.change(folder, {}, tensors)
    assert DFlashDrafter.load(folder, target(), None).hidden_layers == STATES


@pytest.mark.parametrize(
    ("config", "tensors", "said"),
    [
        ({"architectures": ["LlamaForCausalLM"]}, {}, "as a DFlashDraftModel"),
        ({"hidden_size": None}, {}, "config.json lacks hidden_size"),
        ({"block_size": None}, {}, "has no block_size"),
        (
            {"dflash_config": {"mask_token_id": 3}, "num_target_layers": 0},
            {},
            "has no target_layer_ids",
        ),
        (
            {"dflash_config": {"mask_token_id": 8192, "target_layer_ids": [1, 4]}},
            {},
            "mask_token_id must be one of",
        ),
        (
            {"dflash_config": {"mask_token_id": 3, "target_layer_ids": [1, 8]}},
            {},
            "has states 0 to 8",
        ),
        ({"layer_types": [SLIDING, FULL]}, {}, "sliding window"),
        ({"intermediate_size": 97}, {}, "has the shape"),
        ({}, {"norm.weight": None}, "lacks norm.weight"),
        ({}, {"layers.2.mlp.up_proj.weight": torch.zeros(1)}, "holds layers.2.mlp.up_"),
        ({}, {"d2t": torch.zeros(1)}, "reduced vocabulary"),
        ({}, {"d2t": torch.ones(8192, dtype=torch.int64)}, "reduced vocabulary"),
        ({}, {"t2d": torch.arange(8192) > 0}, "reduced vocabulary"),
    ],
)
def test_a_folder_that_does_not_fit_is_refused(folder, config, tensors, said):
    folders.change(folder, config, tensors)
    with pytest.raises(ModelError, match=said):
        DFlashDrafter.load(folder, target(), None)


def test_a_head_for_another_target_is_refused(folder):
    with pytest.raises(ModelError, match="hidden_size is 384 there"):
        DFlashDrafter.load(folder, draft(), None)
    with pytest.raises(InvalidRequest, match="needs a trained head"):
        DFlashDrafter.load(None, target(), None)
    with pytest.raises(InvalidRequest, match="needs a trained head"):
        DFlashDrafter.load(draft(), target(), None)
