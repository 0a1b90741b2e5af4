"""A model is written once per format, reused by its weights, never half written."""

import copy
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from transformers import AutoModelForCausalLM

import starter
from foreword.errors import ModelError
from foreword.model import load_tokenizer
from foreword_lab.bench.inflate.model import inflate, shape_of
from foreword_lab.bench.peers.convert import converted, folder
from foreword_train.gguf.source import Source, source
from tiny_models import build


@pytest.fixture(autouse=True)
def cache(monkeypatch, tmp_path) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    return tmp_path / "foreword" / "peers"


@pytest.fixture(scope="module")
def draft() -> Source:
    model = AutoModelForCausalLM.from_pretrained(starter.draft(), dtype=torch.bfloat16)
    return source("the draft", model, load_tokenizer(starter.draft()))


def changed(before: Source) -> Source:
    """The same, but for the last number of one weight."""
    model = copy.deepcopy(before.model)
    with torch.no_grad():
        model.model.norm.weight[-1] += 1
    return Source(before.name, model, before.tokenizer)


class Writer:
    """Counts how often it writes."""

    def __init__(self) -> None:
        self.times = 0

    def __call__(self, out: Path) -> None:
        assert not list(out.iterdir())
        self.times += 1
        (out / "model").write_text("all of it")


def test_model_is_not_written_again(draft, cache):
    write, lines = Writer(), []
    first = converted("format", draft, write, lines.append)
    again = converted(
        "format",
        Source("another name", copy.deepcopy(draft.model), draft.tokenizer),
        write,
        lines.append,
    )
    assert first == again
    assert first.parent == folder() == cache
    assert (first / "model").read_text() == "all of it"
    assert (write.times, len(lines)) == (1, 1)
    assert "the draft" in lines[0]
    assert str(first) in lines[0]


def test_other_weights_and_formats_have_other_folders(draft):
    write = Writer()
    places = {
        converted(kind, what, write, print)
        for kind in "ab"
        for what in (draft, changed(draft))
    }
    assert (len(places), write.times) == (4, 4)


def test_inflated_weights_have_a_digest_of_their_own():
    small = AutoModelForCausalLM.from_pretrained(starter.draft())
    tokenizer = load_tokenizer(starter.draft())
    shape = replace(shape_of(small.config), hidden=160, layers=3)
    large = [
        source("large", inflate(small, shape), tokenizer).digest() for _ in range(2)
    ]
    assert large[0] == large[1] != source("small", small, tokenizer).digest()


def test_interrupted_writing_leaves_nothing(draft, cache):
    def breaks(out: Path) -> None:
        (out / "model").write_text("half of it")
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        converted("format", draft, breaks, print)
    assert not list(cache.iterdir())
    assert (
        converted("format", draft, Writer(), print) / "model"
    ).read_text() == "all of it"


def test_folder_of_a_concurrent_run_is_used(draft, cache):
    def late(out: Path) -> None:
        (out / "model").write_text("late")
        converted("format", draft, Writer(), print)

    assert (
        converted("format", draft, late, print) / "model"
    ).read_text() == "all of it"
    assert len(list(cache.iterdir())) == 1


def test_unsupported_models_are_refused(draft):
    with pytest.raises(ModelError, match="only a Llama is supported, and it is a Qwen"):
        source("it", build("qwen3"), draft.tokenizer)
    for name, value in (
        ("attention_bias", True),
        ("mlp_bias", True),
        ("hidden_act", "gelu"),
    ):
        model = copy.deepcopy(draft.model)
        setattr(model.config, name, value)
        with pytest.raises(ModelError, match="with silu and without biases"):
            source("it", model, draft.tokenizer)
    model = copy.deepcopy(draft.model)
    model.config.rope_parameters["rope_type"] = "llama3"
    with pytest.raises(ModelError, match="unscaled positions"):
        source("it", model, draft.tokenizer)
