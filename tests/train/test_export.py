"""Drafters for other engines: each gets its tensors, which are read back unchanged."""

import shlex
from dataclasses import replace
from functools import cache
from pathlib import Path

import gguf
import numpy as np
import pytest
import torch
from transformers import AutoConfig

import starter
from folders import copied, kept
from foreword.draft import default_method, method
from foreword.draft.heads.eagle_checkpoint import pack
from foreword.draft.heads.eagle_published import load
from foreword.draft.heads.export_layout import ENGINES
from foreword.errors import InvalidRequest, ModelError
from foreword.model import Model
from foreword.model.loading.checkpoint import Checkpoint
from foreword.model.loading.hub import kinds
from foreword_train import export as exporting
from foreword_train import registry
from foreword_train.commands.export import Engine
from foreword_train.export import _check, export
from foreword_train.methods.lm import load as load_target
from running import target, tokenizer
from trainables import context

EAGLE = registry.EagleOptions(unroll=2, draft_vocab=400)
DFLASH = registry.DFlashOptions(layers=1, block=5, anchors=24)
DSPARK = registry.DSparkOptions(layers=1, block=4, anchors=24, rank=16)
LAYER = {
    *(f"self_attn.{part}_proj.weight" for part in "qkvo"),
    "input_layernorm.weight",
    "post_attention_layernorm.weight",
    *(f"mlp.{part}_proj.weight" for part in ("gate", "up", "down")),
}
QUERY_NORMS = ("self_attn.q_norm.weight", "self_attn.k_norm.weight")
BLOCK = {f"layers.0.{name}" for name in (*LAYER, *QUERY_NORMS)}
BLOCK |= {"fc.weight", "hidden_norm.weight", "norm.weight"}
MARKOV = {"markov_head.markov_w1.weight", "markov_head.markov_w2.weight"}
SURE = {"confidence_head.proj.weight", "confidence_head.proj.bias"}


@cache
def head(options: registry.TrainOptions) -> Path:
    """Return the folder of an untrained head: an export only renames its tensors."""
    source, folder = starter.target(), kept()
    beside = context(load_target(source, torch.float32), tokenizer(), source=source)
    options.begin(beside).save(folder)
    return folder


def fused(layer: str) -> set[str]:
    own = {f"{layer}.{name}" for name in (*LAYER, "hidden_norm.weight")}
    return {"fc.weight", "norm.weight", "lm_head.weight", "d2t", "t2d"} | own


def test_command_line_offers_these_engines():
    assert Engine.__args__ == exporting.ENGINES


@pytest.mark.parametrize(
    ("options", "engine", "names"),
    [
        (EAGLE, "vllm", fused("midlayer")),
        (EAGLE, "sglang", fused("midlayer")),
        (EAGLE, "speculators", fused("layers.0")),
        *((DFLASH, engine, BLOCK) for engine in ENGINES),
        *((DSPARK, engine, BLOCK | MARKOV | SURE) for engine in ENGINES),
    ],
    ids=lambda value: (
        getattr(value, "method", None) or (value if isinstance(value, str) else "")
    ),
)
def test_exported_head_has_the_names_of_the_engine(options, engine, names, tmp_path):
    """It serves here too."""
    done = export(head(options), starter.target(), engine, tmp_path / "a head")
    found = Checkpoint.read(tmp_path / "a head")
    assert set(found.tensors) == names
    assert (done.method, done.tensors) == (options.method, len(names))
    start = shlex.split(done.command)
    folder = str((tmp_path / "a head").resolve())
    assert any(folder in word for word in start), "a space must not cut it in two"
    assert (str(starter.target()) in start) != (engine == "speculators")
    original = Checkpoint.read(head(options))
    for name, tensor in found.tensors.items():
        other = name.replace("layers.0.", "midlayer.")
        before = original.tensors.get(name, original.tensors.get(other))
        assert torch.equal(tensor, before)
    # nothing half written is left
    assert [path.name for path in tmp_path.iterdir()] == ["a head"]
    assert default_method(tmp_path / "a head") == options.method
    served = method(options.method).load(tmp_path / "a head", target(), None)
    assert served.hidden_layers


LLAMA = {f"blk.0.attn_{part}.weight" for part in ("q", "k", "v", "output", "norm")}
LLAMA |= {f"blk.0.ffn_{part}.weight" for part in ("gate", "up", "down", "norm")}
LLAMA |= {"fc.weight", "output_norm.weight"}
MASKED = {f"blk.0.attn_{part}_norm.weight" for part in "qk"} | {
    "enc.output_norm.weight"
}
CHAINED = {"markov_w1.weight", "markov_w2.weight", "conf_proj.weight", "conf_proj.bias"}
IN_LLAMA_CPP = {
    EAGLE: (
        LLAMA
        | {"blk.0.attn_norm_2.weight", "output.weight", "d2t", "rope_freqs.weight"},
        "draft-eagle3 --spec-draft-n-max 5",
        {
            "general.architecture": "eagle3",
            "eagle3.block_count": 1,
            "eagle3.embedding_length": 384,
            "eagle3.target_layers": [2, 4, 5],
            "eagle3.target_hidden_size": 384,
            "eagle3.norm_before_residual": False,
        },
        {"blk.0.attn_norm_2.weight": "midlayer.hidden_norm.weight"},
    ),
    DFLASH: (
        LLAMA | MASKED,
        "draft-dflash --spec-draft-n-max 4",
        {"dflash.block_size": 5, "dflash.sample_from_anchor": False},
        {"blk.0.attn_q.weight": "layers.0.self_attn.q_proj.weight"},
    ),
    DSPARK: (
        LLAMA | MASKED | CHAINED,
        "draft-dspark --spec-draft-n-max 4",
        {"dflash.has_confidence_head": True, "dflash.sample_from_anchor": True},
        {"markov_w2.weight": "markov_head.markov_w2.weight"},
    ),
}


def read_gguf(folder: Path) -> tuple[dict, dict]:
    """Return the fields and tensors of an exported file."""
    read = gguf.GGUFReader(folder / "draft.gguf")
    fields = {name: field.contents() for name, field in read.fields.items()}
    return fields, {tensor.name: tensor for tensor in read.tensors}


def as_stored(tensor: torch.Tensor) -> np.ndarray:
    wide = tensor.float() if tensor.dim() == 1 else tensor
    return wide.contiguous().view(torch.uint8).numpy().ravel()


@pytest.mark.parametrize("options", IN_LLAMA_CPP, ids=lambda options: options.method)
def test_llama_cpp_gets_a_file_of_its_names_and_values(options, tmp_path):
    names, command, values, same = IN_LLAMA_CPP[options]
    rope = dict(rope_type="linear", factor=4.0, rope_theta=10000.0)
    scaled = dict(rope_parameters=rope) if options == EAGLE else {}
    source = copied(head(options), tmp_path / "source", **scaled)
    done = export(source, starter.target(), "llama.cpp", tmp_path / "out")
    assert done.command.endswith(f"draft.gguf --spec-type {command}")
    fields, tensors = read_gguf(tmp_path / "out")
    assert set(tensors) == names
    assert {name: fields[name] for name in values} == values
    assert len(fields["tokenizer.ggml.tokens"]) == target().vocab
    original = Checkpoint.read(head(options))
    for theirs, ours in ({"fc.weight": "fc.weight"} | same).items():
        tensor = original.tensors[ours]
        assert list(tensors[theirs].shape) == list(tensor.shape)[::-1]
        held = np.asarray(tensors[theirs].data).view(np.uint8).ravel()
        assert np.array_equal(held, as_stored(tensor))
    if "d2t" in tensors:
        query = original.tensors["midlayer.self_attn.q_proj.weight"]
        rows = np.asarray(tensors["blk.0.attn_q.weight"].data).view(np.uint8)
        # pairs that are rotated together stand side by side
        assert np.array_equal(rows[1], as_stored(query[32:33]))
        ids = original.tensors["d2t"] + torch.arange(400)
        assert tensors["d2t"].data.tolist() == ids.tolist()
        np.testing.assert_allclose(tensors["rope_freqs.weight"].data, 4.0, rtol=1e-5)
    if "tokenizer.ggml.mask_token_id" in fields:
        layers = original.config.get("dflash_config", original.config)
        assert fields["tokenizer.ggml.mask_token_id"] == layers["mask_token_id"]
        outputs = [state - 1 for state in fields["dflash.target_layers"]]
        assert outputs == layers["target_layer_ids"]


def test_llama_cpp_gets_a_draft_model_as_a_file(tmp_path):
    done = export(starter.draft(), starter.target(), "llama.cpp", tmp_path / "out")
    assert "-m TARGET.gguf" in done.command
    fields, tensors = read_gguf(tmp_path / "out")
    assert fields["general.architecture"] == "llama"
    assert len(tensors) == done.tensors


def test_speculators_config_has_no_ambiguous_defaults(tmp_path):
    export(head(EAGLE), starter.target(), "speculators", tmp_path / "out")
    config = Checkpoint.read(tmp_path / "out").config
    assert kinds(tmp_path / "out")[0] == "eagle3"
    # vLLM takes a folder for speculators' only where there is none
    assert "model_type" not in config
    # a missing one is True to vLLM and False to speculators
    assert config["norm_before_residual"] is False
    assert config["eagle_aux_hidden_state_layer_ids"] == [2, 4, 5]
    assert config["transformer_layer_config"]["model_type"] == "llama"
    assert config["draft_vocab_size"] == 400
    verifier = config["speculators_config"]["verifier"]
    assert verifier["architectures"] == ["LlamaForCausalLM"]
    again = load(tmp_path / "out", target().hf.config)
    before = load(head(EAGLE), target().hf.config)
    assert again.config.states == before.config.states


def test_block_head_numbers_its_layers_as_the_layout_does(tmp_path):
    flat = Checkpoint.read(head(DFLASH)).config["dflash_config"]["target_layer_ids"]
    export(head(DFLASH), starter.target(), "speculators", tmp_path / "out")
    config = Checkpoint.read(tmp_path / "out").config
    assert config["aux_hidden_state_layer_ids"] == [layer + 1 for layer in flat]
    assert config["sample_from_anchor"] is False
    assert config["block_size"] == 5
    proposal = config["speculators_config"]["proposal_methods"][0]
    assert proposal["speculative_tokens"] == 4


def test_draft_model_is_copied_with_its_tokenizer(tmp_path):
    done = export(starter.draft(), starter.target(), "sglang", tmp_path / "out")
    assert "--speculative-algorithm STANDALONE" in done.command
    assert Model.load(tmp_path / "out").vocab == target().vocab
    assert (tmp_path / "out" / "tokenizer.json").exists()
    with pytest.raises(InvalidRequest, match="speculators does not support it"):
        export(starter.draft(), starter.target(), "speculators", tmp_path / "other")


def test_unsupported_exports_are_refused_and_leave_nothing(tmp_path):
    anchored = copied(head(DFLASH), tmp_path / "anchored", sample_from_anchor=True)
    normed = copied(head(EAGLE), tmp_path / "normed", norm_before_residual=True)
    other = copied(head(DSPARK), tmp_path / "other", vocab_size=64)
    unsure = copied(
        head(DSPARK), tmp_path / "unsure", confidence_head_with_markov=False
    )
    weights = Checkpoint.read(unsure)
    proj = weights.tensors["confidence_head.proj.weight"][:, : -DSPARK.rank]
    tensors = {**weights.tensors, "confidence_head.proj.weight": proj}
    replace(weights, tensors=tensors).write(unsure)
    fed = copied(head(EAGLE), tmp_path / "fed", norm_output=True)
    medusa, here = head(registry.MedusaOptions()), starter.target()
    for source, model, engine, error, words in (
        (medusa, here, "vllm", InvalidRequest, "it has no method medusa"),
        (head(EAGLE), here, "tgi", InvalidRequest, "cannot export for engine 'tgi'"),
        (head(EAGLE), tmp_path / "no", "vllm", ModelError, "cannot read the config"),
        (anchored, here, "vllm", InvalidRequest, "from_anchor .*: vllm does not"),
        (normed, here, "sglang", InvalidRequest, "sglang does not support it"),
        (other, here, "vllm", ModelError, "cannot "),
        (anchored, here, "llama.cpp", InvalidRequest, "from_anchor: llama.cpp does"),
        (fed, here, "llama.cpp", InvalidRequest, "norm_output: llama.cpp does not"),
        (unsure, here, "llama.cpp", InvalidRequest, "reads no token: llama.cpp does"),
        (medusa, here, "llama.cpp", InvalidRequest, "it has no method medusa"),
    ):
        with pytest.raises(error, match=words):
            export(source, model, engine, tmp_path / "out")
    assert not (tmp_path / "out").exists()
    assert not list(tmp_path.glob(".out*"))


def test_missing_and_unexpected_tensors_are_refused(tmp_path):
    config = AutoConfig.from_pretrained(starter.target())
    layout = pack(Checkpoint.read(head(EAGLE)), config, "vllm")
    layout.write(tmp_path / "begun")
    _check(tmp_path / "begun", layout, pack, config, "vllm")
    for names in (layout.names | {"midlayer.gate.weight"}, layout.names - {"d2t"}):
        wrong = replace(layout, names=names)
        with pytest.raises(ModelError, match=r"(midlayer\.gate\.weight|d2t)\."):
            _check(tmp_path / "begun", wrong, pack, config, "vllm")

    def other(found, *args):
        """Reads one number as another."""
        tensors = dict(found.tensors)
        tensors["norm.weight"] = tensors["norm.weight"] + 1
        return pack(Checkpoint(found.source, found.config, tensors), *args)

    with pytest.raises(ModelError, match="differs when read back"):
        _check(tmp_path / "begun", layout, other, config, "vllm")
