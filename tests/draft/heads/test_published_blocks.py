"""Heads of other projects that draft blocks, or one token per head, load as published."""

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from contract import the_text_is_unaffected
from folders import configured
from foreword.draft import default_method, method
from foreword.draft.heads.block import BlockRequest
from foreword.draft.heads.dflash import DFlashHead
from foreword.draft.heads.dspark import DSparkHead
from foreword.draft.heads.medusa import MedusaDrafter, MedusaHeads
from foreword.errors import InvalidRequest, ModelError
from foreword.model import Model
from foreword.model.loading.checkpoint import Checkpoint
from foreword_train.registry import DSparkOptions, MedusaOptions
from pair import VOCAB, llama
from recorded_heads import checkpoint, recorded, weight
from running import DTYPE, shelf
from running import target as shipped


@pytest.mark.parametrize(
    ("name", "vocab"),
    [
        ("speculators_dspark", VOCAB),
        ("speculators_dspark_reduced", VOCAB // 2),
        ("speculators_dflash_reduced", VOCAB // 2),
    ],
)
def test_a_recorded_head_drafts_from_its_own_vocabulary(name, vocab, tmp_path):
    checkpoint(name).write(tmp_path)
    target = Model(llama(0, layers=8))
    kind = default_method(tmp_path)
    assert kind == name.split("_")[1]
    drafter = method(kind).load(tmp_path, target, None)
    states = torch.randn(5, 64, generator=torch.Generator().manual_seed(3))
    drafter.blocks.open(1, 32)
    drafter.blocks.queue(BlockRequest(1, 7, states))
    logits = drafter.blocks.block(1)
    assert logits.shape == (drafter.deep, VOCAB)
    possible = torch.isfinite(logits)
    assert possible.sum(1).tolist() == [vocab] * drafter.deep
    if vocab != VOCAB:
        assert not possible[:, 1::2].any(), "the draft vocabulary is every second token"


def test_candidates_of_dflash2_are_those_of_the_publisher(tmp_path):
    record = recorded("speculators_dflash2")
    checkpoint("speculators_dflash2").write(tmp_path)
    model = llama(0, layers=8)
    words = model.get_input_embeddings().weight  # tied to the LM head
    words.data.copy_(weight("embed_tokens.weight", [VOCAB, 32], "float32"))
    assert default_method(tmp_path) == "dflash"
    drafter = method("dflash").load(tmp_path, Model(model), None)
    states = torch.randn(1, 15, 96, generator=torch.Generator().manual_seed(3))
    drafter.blocks.open(1, 32)
    for start, end in ((0, 4), (4, 10)):
        ask = BlockRequest(1, record["before"][0], states[0, start:end], start)
        drafter.blocks.queue(ask)
        rows = drafter.blocks.block(1)
    found = drafter.blocks.after(rows, record["before"])
    for row, candidates in zip(found, record["candidates"], strict=True):
        assert row.isfinite().nonzero().flatten().tolist() == [i for i, _ in candidates]
        expected = torch.tensor([score for _, score in candidates])
        torch.testing.assert_close(row[row.isfinite()], expected, atol=2e-4, rtol=1e-3)


@pytest.mark.parametrize("name", ["dspark", "dflash"])
def test_a_reduced_head_is_written_as_it_was_read(name, tmp_path):
    checkpoint(f"speculators_{name}_reduced").write(tmp_path / "theirs")
    kind = {"dspark": DSparkHead, "dflash": DFlashHead}[name]
    head = kind.read(Checkpoint.read(tmp_path / "theirs"))
    head.dump(torch.float32).write(tmp_path / "ours")
    again = kind.read(Checkpoint.read(tmp_path / "ours"))
    assert again.layout.draft_vocab == VOCAB // 2
    for key, tensor in head.state_dict().items():
        assert torch.equal(again.state_dict()[key], tensor), key


def reduced(tmp_path: Path) -> Path:
    """Return a trained head whose vocabulary is the first half of the target's."""
    head = Checkpoint.read(shelf(DSparkOptions(layers=1, block=4, anchors=24, rank=16)))
    words = load_file(shipped_folder() / "model.safetensors")
    half = head.config["vocab_size"] // 2
    mask = torch.arange(2 * half) < half
    own = {
        "markov_head.markov_w2.weight": head.tensors["markov_head.markov_w2.weight"],
        "lm_head.weight": words.get(
            "lm_head.weight", words["model.embed_tokens.weight"]
        ),
    }
    tensors = {
        **head.tensors,
        **{name: tensor[:half].clone() for name, tensor in own.items()},
        "d2t": torch.zeros(half, dtype=torch.int64),
        "t2d": mask,
    }
    Checkpoint("", {**head.config, "draft_vocab_size": half}, tensors).write(tmp_path)
    return tmp_path


def shipped_folder() -> Path:
    import starter

    return starter.target()


def test_a_reduced_head_changes_no_text(tmp_path):
    folder = reduced(tmp_path)
    the_text_is_unaffected(
        lambda: method("dspark").load(folder, shipped(DTYPE), None), DTYPE
    )


def test_a_config_of_specforge_is_read(tmp_path):
    """configs/qwen3-8b-dspark.json nests the keys of the bigram table."""
    ours = shelf(DSparkOptions(layers=1, block=4, anchors=24, rank=16))
    head = Checkpoint.read(ours)
    nested = tuple(
        (
            "mask_token_id target_layer_ids markov_rank markov_head_type "
            "enable_confidence_head confidence_head_with_markov"
        ).split()
    )
    config = {key: value for key, value in head.config.items() if key not in nested}
    config |= {
        "architectures": ["DSparkDraftModel"],
        "dflash_config": {
            "projector_type": "dspark",
            **{key: head.config[key] for key in nested},
        },
    }
    Checkpoint("", config, head.tensors).write(tmp_path)
    assert default_method(tmp_path) == "dspark"
    found = DSparkHead.read(Checkpoint.read(tmp_path))
    assert found.layout == DSparkHead.read(head).layout
    assert found.state_dict().keys() == DSparkHead.read(head).state_dict().keys()


@pytest.fixture
def flat(tmp_path) -> Path:
    checkpoint("speculators_dflash_reduced").write(tmp_path / "theirs")
    theirs = Checkpoint.read(tmp_path / "theirs")
    tensors = {
        name: tensor
        for name, tensor in theirs.tensors.items()
        if name not in ("d2t", "t2d", "lm_head.weight")
    }
    config = {
        **theirs.config["transformer_layer_config"],
        "architectures": ["DFlashDraftModel"],
        "block_size": 4,
        "num_target_layers": 8,
        "dflash_config": {"mask_token_id": 3},
    }
    Checkpoint("", config, tensors).write(tmp_path / "flat")
    return tmp_path / "flat"


def test_layers_that_a_flat_config_leaves_out_are_the_default(flat):
    layout = DFlashHead.read(Checkpoint.read(flat)).layout
    assert layout.outputs == [1, 5], "2 of 8 layers, from 1 to 8 - 3"


@pytest.mark.parametrize(
    ("values", "says"),
    [
        (
            {"dflash_config": {"mask_token_id": 3, "projector_type": "domino"}},
            "projector_type in its config.json is 'domino'",
        ),
        ({"layer_types": ["sliding_attention"] * 2}, "sliding window of its 2 layers"),
        ({"num_target_layers": 12}, "num_target_layers is 12 there"),
    ],
)
def test_a_head_of_another_kind_or_target_is_refused(flat, values, says):
    configured(flat, **values)
    with pytest.raises(ModelError, match=says):
        method("dflash").load(flat, Model(llama(0, layers=8)), None)


@pytest.mark.parametrize("kind", ["xpress", "DominoDraftModel"])
def test_a_kind_that_no_method_runs_is_refused_by_name(kind, tmp_path):
    (tmp_path / "config.json").write_text(
        json.dumps({"architectures": [kind], "draft_vocab_size": 100})
    )
    with pytest.raises(ModelError, match=f"kind '{kind}', which no method runs"):
        default_method(tmp_path)


@pytest.mark.parametrize("ending", ["pt", "safetensors"])
def test_the_original_medusa_is_read(ending, tmp_path):
    """FasterDecoding/Medusa: no architecture, a file of its own name."""
    head = Checkpoint.read(shelf(MedusaOptions()))
    names = ("medusa_num_heads", "medusa_num_layers", "vocab_size")
    config = {name: head.config[name] for name in names}
    (tmp_path / "config.json").write_text(json.dumps(config))
    path = tmp_path / f"medusa_lm_head.{ending}"
    if ending == "pt":
        torch.save(dict(head.tensors), path)
    else:
        save_file(dict(head.tensors), path)
    assert default_method(tmp_path) == "medusa"
    same(tmp_path, head)


def test_the_medusa_of_vllm_is_read(tmp_path):
    head = Checkpoint.read(shelf(MedusaOptions()))
    layers = head.config["medusa_num_layers"]
    tensors = {
        f"blocks.{name.split('.')[0]}.layers.{name.split('.')[1]}.{name.split('.')[-1]}"
        if ".linear." in name
        else f"lm_heads.{name.split('.')[0]}.weight": tensor
        for name, tensor in head.tensors.items()
    }
    config = {
        "architectures": ["MedusaModel"],
        "model_type": "medusa",
        "hidden_size": head.config["hidden_size"],
        "vocab_size": head.config["vocab_size"],
        "num_heads": head.config["medusa_num_heads"],
        "num_hidden_layers": layers,
    }
    Checkpoint("", config, tensors).write(tmp_path)
    same(tmp_path, head)
    rest = {name: one for name, one in tensors.items() if not name.endswith("bias")}
    Checkpoint("", config, rest).write(tmp_path)
    found = MedusaHeads.read(Checkpoint.read(tmp_path)).state_dict()
    assert not found["0.0.linear.bias"].any(), "vLLM's have no biases by default"
    configured(tmp_path, truncated_vocab_size=100)
    with pytest.raises(ModelError, match="know a part of the vocabulary"):
        MedusaHeads.read(Checkpoint.read(tmp_path))


def same(folder: Path, head: Checkpoint) -> None:
    """Check that a folder holds these heads, and drafts with them."""
    found = MedusaHeads.read(Checkpoint.read(folder)).state_dict()
    assert found.keys() == head.tensors.keys()
    for name, tensor in head.tensors.items():
        assert torch.equal(found[name], tensor.float()), name
    drafter = MedusaDrafter.load(folder, shipped(DTYPE), None)
    assert drafter.deep == head.config["medusa_num_heads"]


def test_a_pickle_of_something_else_is_refused(tmp_path):
    (tmp_path / "config.json").write_text(json.dumps({"medusa_num_heads": 2}))
    torch.save([torch.zeros(2)], tmp_path / "medusa_lm_head.pt")
    with pytest.raises(ModelError, match="not a dict from names to tensors"):
        Checkpoint.read(tmp_path)


def test_training_on_from_a_reduced_head_is_refused(tmp_path):
    from foreword_train.methods.masked import trainable

    checkpoint("speculators_dflash_reduced").write(tmp_path)
    head = DFlashHead.read(Checkpoint.read(tmp_path))
    with pytest.raises(InvalidRequest, match="has a reduced vocabulary"):
        trainable(head, tmp_path)
