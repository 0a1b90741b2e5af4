"""The bundled target in each format writes sensible text, the same with drafts."""

import json
import shutil
from pathlib import Path

import pytest
import torch

import quantizing.floats
import quantizing.packed
from foreword import LLM, bundled
from foreword.model import Model, Read
from foreword.native import forward
from running import check_drafts, prompts

NATIVE = forward.reason() is None
FORMATS = {
    "fp8": lambda folder: quantizing.floats.fp8(folder, 128),
    "nvfp4": quantizing.floats.nvfp4,
    "gptq-3": lambda folder: quantizing.packed.gptq(folder, 3),
}
MOST = {"fp8": 0.01, "nvfp4": 0.1, "gptq-3": 0.3}
"""Nats a token from the bfloat16 model."""


@pytest.fixture(scope="module", params=FORMATS)
def folder(request, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("home") / request.param
    shutil.copytree(bundled.target(), path)
    FORMATS[request.param](path)
    return path


@pytest.fixture(scope="module")
def llm(folder: Path) -> LLM:
    return LLM(folder, draft=bundled.draft())


def scores(model: Model) -> torch.Tensor:
    tokens = list(prompts()[0])
    model.open(9, 100)
    found = model.read([Read(9, 0, tokens, keep=len(tokens))]).log_softmax(-1)
    model.close(9)
    return found


@pytest.mark.slow
def test_scores_are_near_those_of_bfloat16(folder, llm):
    whole = scores(Model.load(bundled.target(), dtype="bfloat16", device="cpu"))
    apart = (whole.exp() * (whole - scores(llm.target))).sum(-1).mean()  # KL, nats
    assert 1e-5 < apart < MOST[folder.name]


@pytest.mark.skipif(not NATIVE, reason="no native kernel here")
def test_codes_are_multiplied(folder, llm):
    held = llm.target.weights
    if folder.name == "fp8":
        assert held is None
        return
    # of the whole model: the LM head stays in 16
    assert 6 < float(held.removesuffix(" bits")) < 8


@pytest.mark.sample(3)
@pytest.mark.parametrize("temperature", [0.0, 0.7])
@pytest.mark.parametrize("method", ["suffix", "lm"])
def test_drafts_leave_the_text_unchanged(llm, method, temperature):
    check_drafts(llm, method, temperature)


@pytest.mark.sample(3)
def test_commands_take_such_a_folder(folder, here):
    write = ("generate", "The river", "--model", str(folder), "--max-tokens", "12")
    texts = [
        here(*write, "--seed", "3", "--method", name) for name in ("none", "suffix")
    ]
    assert texts[0].stdout == texts[1].stdout != ""
    facts = json.loads(here("inspect", str(folder), "--json").stdout)
    assert facts["model"] == str(folder)
