"""A diagnosis finds too little training and wrong hidden states, and approves a good
drafter.
"""

import json
from pathlib import Path

import pytest

import starter
from drafters import Foresight, Truth
from foreword import LLM, SamplingParams, bundled
from foreword.bench.doctor import (
    Diagnosis,
    DoctorOptions,
    Finding,
    _layers,
    _run_drafter,
    examine,
)
from foreword.errors import InvalidRequest, ModelError
from foreword.model.loading.checkpoint import Checkpoint
from foreword.train.registry import EagleOptions
from foreword.types import Request
from running import TEXTS, shelf

TARGET = str(starter.target())
DRAFT = str(starter.draft())
FEW = {"prompts": 3, "tokens": 16, "texts": TEXTS[:3], "device": "cpu"}


@pytest.fixture(scope="module")
def head() -> Path:
    return shelf(EagleOptions(unroll=2, draft_vocab=400))


def findings(found: Diagnosis, level: str) -> str:
    return "\n".join(
        f"{finding.what} {finding.advice}"
        for finding in found.findings
        if finding.level == level
    )


def test_good_draft_is_approved():
    found = examine(DoctorOptions(target=TARGET, draft=DRAFT, **FEW))
    assert found.method == "lm"
    assert set(found.work) == {"0", "1"}
    assert found.work["0"].first > 0.4
    assert found.work["0"].tokens_per_pass > 1.5
    assert "first draft tokens accepted" in findings(found, "good")
    assert json.loads(json.dumps(found.as_json()))["work"]["0"]["propose"] > 0


RIGHT = (2, 5)


class Picky(Foresight):
    """Proposes the right tokens if it is shown the hidden states RIGHT."""

    def __init__(self, truth: Truth, shown: tuple[int, ...]) -> None:
        super().__init__(truth)
        self.hidden_layers = shown

    def token_at(self, sequence: Request, depth: int) -> int:
        return super().token_at(sequence, depth) if self.hidden_layers == RIGHT else 1


def test_wrong_hidden_states_are_found():
    llm = LLM(TARGET, method="none", nodes=1)
    prompts = [llm.tokenizer(text)["input_ids"] for text in TEXTS[:3]]
    params = SamplingParams(temperature=0, max_tokens=12, ignore_eos=True)
    answers = {
        tuple(one.prompt_tokens): one.tokens for one in llm.generate(prompts, params)
    }

    def finding(shown: tuple[int, ...]) -> Finding:
        llm.engine.default.drafter = Picky(
            lambda s: answers[tuple(s.tokens[: s.prompt])], shown
        )
        configured = _run_drafter(llm, prompts, 0.0, 10)
        (found,) = _layers(llm, prompts, configured, 10, lambda _: None)
        return found

    assert finding(RIGHT).level == "good"
    wrong = finding((3, 6))
    assert wrong.level == "bad"
    assert "its config names [3, 6]; write [2, 5] there" in wrong.advice


@pytest.mark.slow
def test_method_of_a_head_is_recognized(head):
    found = examine(DoctorOptions(target=TARGET, draft=str(head), **FEW))
    assert found.method == "eagle"
    assert "hidden states [2, 4, 5] are the right ones" in findings(found, "good")


@pytest.mark.slow
def test_untrained_head_is_found(head, tmp_path):
    right = Checkpoint.read(head)
    # it proposes the least likely token
    tensors = {**right.tensors, "norm.weight": -right.tensors["norm.weight"]}
    Checkpoint("", right.config, tensors).write(tmp_path)
    found = examine(DoctorOptions(target=TARGET, draft=str(tmp_path), **FEW))
    assert "hardly any first draft token is accepted" in findings(found, "bad")


def test_drafter_that_cannot_be_loaded_is_refused(tmp_path):
    with pytest.raises(ModelError, match="cannot load a tokenizer"):
        examine(DoctorOptions(target=TARGET, draft=str(tmp_path / "nothing"), **FEW))
    right = Checkpoint.read(bundled.head("eagle"))
    Checkpoint("", {**right.config, "vocab_size": 64}, right.tensors).write(tmp_path)
    with pytest.raises(ModelError, match="it has a vocabulary of 64 tokens"):
        examine(DoctorOptions(draft=str(tmp_path), **FEW))
    with pytest.raises(InvalidRequest, match="needs a trained head"):
        examine(DoctorOptions(target=TARGET, method="eagle", **FEW))
