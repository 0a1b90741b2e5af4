"""Commands that are given a trained head in the layout of another project."""

import json
from pathlib import Path

import pytest
from safetensors.torch import load_file

from foreword import bundled
from foreword.bench.run import Options, with_head
from foreword.model.loading.checkpoint import Checkpoint
from head_layouts import speculators


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
    path = folder / "config.json"
    named = {"verifier": {"name_or_path": "some/target"}}
    config = json.loads(path.read_text()) | {"speculators_config": named}
    path.write_text(json.dumps(config))
    return folder


def test_inspect_names_the_method_and_the_target_of_a_head(here, head):
    ended = here("inspect", "--draft", str(head), "--json")
    assert ended.returncode == 0, ended.stderr
    found = json.loads(ended.stdout)
    assert found["default_method"] == "eagle"
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
