"""EAGLE-3 heads of other projects compute the same here as there."""

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

import starter
from folders import configured
from foreword import bundled
from foreword.draft import default_method
from foreword.draft.heads.eagle import EagleDrafter
from foreword.draft.heads.eagle_checkpoint import dump
from foreword.draft.heads.eagle_published import load
from foreword.model import Model, Read
from foreword.model.loading.checkpoint import Checkpoint
from foreword.types import SamplingParams
from foreword_lab.bench.run import Options, with_head
from foreword_train.registry import EagleOptions
from head_layouts import WRITERS, speculators
from pair import VOCAB, llama
from recorded_heads import checkpoint, recorded
from running import DTYPE, Case, engine, finish, prompts, shelf
from running import target as shipped

RECORDS = (
    "speculators_eagle3",
    "speculators_eagle31",
    "speculators_eagle3_qwen3",
    "speculators_eagle3_window",
)
ROWS = 12
"""Committed tokens of the record; three draft tokens follow."""


@pytest.fixture(scope="module")
def target() -> Model:
    return Model(llama(0, layers=8))


@pytest.mark.parametrize("name", RECORDS)
def test_logits_are_those_of_the_publisher(name, target, tmp_path):
    checkpoint(name).write(tmp_path)
    assert default_method(tmp_path) == "eagle"
    reader = EagleDrafter.load(tmp_path, target, None)._reader
    tokens = torch.randint(VOCAB, (16,), generator=torch.Generator().manual_seed(1))
    states = torch.randn(1, 15, 96, generator=torch.Generator().manual_seed(3))
    text = tokens.tolist()
    reader.open(1, 64)
    reader.target_states.add(1, 0, states[0, :ROWS])
    found = [reader.read([Read(1, 0, text[1 : ROWS + 1])])]
    for depth in range(2):
        read = Read(
            1, ROWS, [text[ROWS + 1 + depth]], list(range(-1, depth)), 1, held=depth
        )
        found.append(reader.read([read]))
    expected = torch.tensor(recorded(name)["logits"])
    torch.testing.assert_close(
        torch.cat(found)[: len(expected), :6], expected, atol=2e-4, rtol=1e-3
    )


def test_a_head_of_p_eagle_drafts_all_tokens_in_one_forward(target, tmp_path):
    checkpoint("speculators_peagle").write(tmp_path)
    assert default_method(tmp_path) == "eagle"
    drafter = EagleDrafter.load(tmp_path, target, None)
    tokens = torch.randint(VOCAB, (16,), generator=torch.Generator().manual_seed(1))
    states = torch.randn(1, 15, 96, generator=torch.Generator().manual_seed(3))
    text = tokens.tolist()
    blocks = drafter.blocks
    reader = blocks.model
    reader.open(1, 64)
    reader.target_states.add(1, 0, states[0, :ROWS])
    reader.read([Read(1, 0, text[1:6], keep=0)])
    for _ in range(2):  # masks are not kept
        blocks.queue(blocks.masked(Read(1, 5, text[6 : ROWS + 1]), 4))
        found = blocks.block(1)
    expected = torch.tensor(recorded("speculators_peagle")["logits"])
    assert drafter.deep == len(expected) == len(found)
    assert not torch.isfinite(found[:, 1::2]).any(), "every second token is drafted"
    torch.testing.assert_close(found[:, :12:2], expected, atol=2e-4, rtol=1e-3)


def answered(folder: Path) -> list[tuple[list[int], int, int]]:
    """Return the tokens of some answers, with the draft tokens and accepted ones."""
    drafter = EagleDrafter.load(folder, shipped(DTYPE), None)
    params = SamplingParams(temperature=0.0, max_tokens=16, ignore_eos=True)
    answers = finish(
        engine(shipped(DTYPE), drafter, 3), [Case(one, params) for one in prompts()[:2]]
    )
    stats = [one.request.stats for one in answers]
    return [
        (one.tokens, stat.drafted, stat.accepted)
        for one, stat in zip(answers, stats, strict=True)
    ]


@pytest.mark.parametrize("layout", [*WRITERS, "speculators"])
def test_a_rewritten_head_drafts_the_same(layout, tmp_path):
    ours = shelf(EagleOptions(unroll=2, draft_vocab=400))
    head = Checkpoint.read(ours)
    if layout == "speculators":
        weights = load_file(starter.target() / "model.safetensors")
        speculators(head, tmp_path, weights["model.embed_tokens.weight"])
    else:
        WRITERS[layout](head, tmp_path)
    assert default_method(tmp_path) == "eagle"
    found = answered(tmp_path)
    assert found == answered(ours)
    assert sum(accepted for *_, accepted in found) > 0


@pytest.mark.parametrize("name", ["speculators_eagle31", "speculators_eagle3_qwen3"])
def test_a_head_is_written_as_it_was_read(name, target, tmp_path):
    checkpoint(name).write(tmp_path / "theirs")
    head = load(tmp_path / "theirs", target.hf.config)
    dump(head, torch.float32, target.hf.config).write(tmp_path / "ours")
    again = load(tmp_path / "ours", target.hf.config)
    assert again.config.fc_norm == head.config.fc_norm
    assert again.config.head_norms == head.config.head_norms
    assert again.state_dict().keys() == head.state_dict().keys()
    for key, tensor in head.state_dict().items():
        assert torch.equal(again.state_dict()[key], tensor), key


@pytest.fixture
def head(tmp_path) -> Path:
    """The bundled head in the layout of speculators, which names its target."""
    folder = tmp_path / "head"
    folder.mkdir()
    words = load_file(bundled.target() / "model.safetensors")
    source = bundled.head("eagle")
    assert source is not None
    embeddings = words["model.embed_tokens.weight"]
    speculators(Checkpoint.read(source), folder, embeddings)
    named = {"verifier": {"name_or_path": "some/target"}}
    return configured(folder, speculators_config=named)


def test_inspect_names_the_method_and_the_target_of_a_head(here, head):
    ended = here("inspect", "--draft", str(head), "--json")
    assert ended.returncode == 0, ended.stderr
    found = json.loads(ended.stdout)
    assert found["default_method"] == "auto(eagle, ngram, suffix)"
    assert found["trained_for"] == "some/target"
    assert found["reads_hidden_states"] == [2, 4, 5]


def test_a_head_in_place_of_a_model_is_refused_by_name(here, head):
    ended = here("inspect", str(head))
    assert ended.returncode != 0
    assert "is a trained head of the method eagle" in " ".join(ended.stderr.split())


def test_a_head_drafts_from_the_command_line(here, head):
    asked = ("generate", "The capital of France is", "--max-tokens", "16")
    asked = (*asked, "--temperature", "0")
    plain = here(*asked, "--method", "none", "--json")
    ended = here(*asked, "--draft", str(head), "--json")
    assert ended.returncode == 0, ended.stderr
    ours, theirs = (json.loads(one.stdout) for one in (ended, plain))
    assert ours["text"] == theirs["text"]
    assert ours["stats"]["accepted"] > 0


def test_bench_measures_a_head_by_its_own_method(head):
    options = with_head(Options(draft=str(head)))
    assert options.draft is None
    assert options.methods == ("ngram", "eagle")
    assert options.sources == (f"eagle={head}",)
    assert with_head(Options(draft="some/model")).draft == "some/model"
