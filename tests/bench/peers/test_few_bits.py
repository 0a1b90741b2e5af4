"""Other engines hold a target of few bits in as many bits, and the report says so."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from transformers import AutoModelForCausalLM

import starter
from foreword.model import load_tokenizer
from foreword.native import forward
from foreword_lab.bench.lineup import weights
from foreword_lab.bench.peers import engines, llamacpp, registry
from foreword_lab.bench.peers.convert import INT4, INT8
from foreword_lab.bench.peers.engines import ENGINES, GENERATE, MODES
from foreword_lab.bench.peers.registry import Pair
from foreword_lab.bench.run import Options, run
from foreword_train.gguf.source import Source, source

FORMS = (INT8, INT4)


def loaded(form: str | None, folder: Path) -> Source:
    """Return a model to be held in `form`."""
    model = AutoModelForCausalLM.from_pretrained(folder, dtype="float32")
    return source("the model", model, load_tokenizer(folder), form)


def matrices(file: Path) -> set[str]:
    """Names of the types of a file's matrices."""
    reader: Any = pytest.importorskip("gguf").GGUFReader(file)
    return {one.tensor_type.name for one in reader.tensors if len(one.shape) == 2}


def test_llamacpp_gets_a_file_of_as_many_bits(small):
    pytest.importorskip("gguf")
    files = {form: llamacpp.file(loaded(form, small), print) for form in (None, *FORMS)}
    assert {form: matrices(file) for form, file in files.items()} == {
        None: {"F32"},
        INT8: {"Q8_0"},
        INT4: {"Q4_0"},
    }


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("engine", ENGINES)
def test_texts_are_about_those_of_the_rounded_model(engine, form, needs, requests):
    needs(engine)
    target = loaded(form, starter.target())
    pair = Pair(lambda: target, lambda: loaded(None, starter.draft()), print)
    entries = {mode: registry.make(f"{engine}.{mode}", pair) for mode in MODES}
    answers = {
        mode: [one.run(request) for request in requests]
        for mode, one in entries.items()
    }
    plain = answers[GENERATE]
    for mode, trials in answers.items():
        alike = [
            np.cumprod(
                [x == y for x, y in zip(one.tokens, two.tokens, strict=False)]
            ).sum()
            for one, two in zip(trials, plain, strict=True)
        ]
        written = sum(len(one.tokens) for one in trials)
        assert sum(alike) > 0.6 * written
        passes = sum(one.passes or 0 for one in trials)
        assert passes == written if mode == GENERATE else passes < 0.9 * written


@pytest.mark.skipif(
    forward.reason() is not None, reason=f"no native kernel here: {forward.reason()}"
)
def test_report_names_the_form_of_the_weights():
    few = Options(
        target=str(starter.draft()),
        draft=str(starter.draft()),
        limit_prompts=1,
        max_tokens=4,
        methods=("none",),
        temperatures=(0.0,),
        dtype="bfloat16",
    )
    report = run(few)
    assert report.settings["held"] == dict.fromkeys(
        ("foreword", "transformers", "draft models of other engines"), "bfloat16"
    )
    assert "weights:" not in str(report.table().caption)
    given = weights(None, None, "bfloat16", None)
    assert given.held(engines.NAMES)["llamacpp"] == "bfloat16"
    report = run(Options(**{**vars(few), "weights": INT4}))
    assert (
        json.loads(json.dumps(report.as_json()))["settings"]["held"]["foreword"] == INT4
    )
    line = (
        "weights: foreword int4; transformers bfloat16; draft models of other engines "
        "bfloat16"
    )
    assert line in str(report.table().caption)
