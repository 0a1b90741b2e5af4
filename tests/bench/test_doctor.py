"""What is wrong with a drafter is found: too little training, the wrong layers; and
what is right.
"""

import json
from pathlib import Path

import pytest

import starter
from drafters import Foresight, Truth
from foreword import LLM, SamplingParams
from foreword.bench.doctor import (
    Diagnosis,
    DoctorOptions,
    _layers,
    _run_drafter,
    examine,
)
from foreword.errors import InvalidRequest, ModelError
from foreword.model.loading.checkpoint import Checkpoint
from foreword.train.registry import EagleOptions
from foreword.types import Sequence
from running import TEXTS, shelf

TARGET = str(starter.target())
FEW = {
    "prompts": 3,
    "tokens": 16,
    "texts": TEXTS[:3],
    "dtype": "float32",
    "device": "cpu",
}


@pytest.fixture(scope="module")
def head() -> Path:
    return shelf(EagleOptions(unroll=2, draft_vocab=400))


def said(found: Diagnosis, level: str) -> str:
    return "\n".join(
        f"{finding.what} {finding.advice}"
        for finding in found.findings
        if finding.level == level
    )


def test_a_good_draft_is_called_good():
    found = examine(DoctorOptions(**FEW))
    assert found.method == "lm"
    assert set(found.work) == {"0", "1"}
    assert found.work["0"].first > 0.4
    assert found.work["0"].tokens_per_pass > 1.5
    assert "first draft tokens accepted" in said(found, "good")
    assert json.loads(json.dumps(found.as_json()))["work"]["0"]["propose"] > 0


class Picky(Foresight):
    """Guesses right where it is shown the hidden states that it was made for."""

    def __init__(
        self, truth: Truth, right: tuple[int, ...], shown: tuple[int, ...]
    ) -> None:
        super().__init__(truth)
        self.right, self.hidden_layers = right, shown

    def token_at(self, sequence: Sequence, depth: int) -> int:
        return (
            super().token_at(sequence, depth) if self.hidden_layers == self.right else 1
        )


@pytest.mark.parametrize(
    ("right", "shown", "level"), [((2, 5), (3, 6), "bad"), ((2, 5), (2, 5), "good")]
)
def test_a_head_that_is_shown_the_wrong_layers_is_found_out(right, shown, level):
    llm = LLM(method="none", nodes=1, dtype="float32")
    asked = [llm.tokenizer(text)["input_ids"] for text in TEXTS[:3]]
    params = [
        SamplingParams(temperature=0, seed=seed, max_tokens=30, ignore_eos=True)
        for seed in range(3)
    ]
    said = {tuple(one.prompt_tokens): one.tokens for one in llm.generate(asked, params)}
    llm.engine.usual.drafter = Picky(
        lambda s: said[tuple(s.tokens[: s.prompt])], right, shown
    )
    (found,) = _layers(
        llm, asked, _run_drafter(llm, asked, 0.0, 16), 16, lambda _: None
    )
    assert found.level == level
    if level == "bad":
        assert "its config names [3, 6]; write [2, 5] there" in found.advice


@pytest.mark.slow
def test_a_head_says_which_method_it_serves(head):
    found = examine(DoctorOptions(target=TARGET, draft=str(head), **FEW))
    assert found.method == "eagle"
    assert "hidden states [2, 4, 5] are the right ones" in said(found, "good")


@pytest.mark.slow
def test_a_head_that_knows_nothing_is_found_out(head, tmp_path):
    right = Checkpoint.read(head)
    # it says the least likely
    tensors = {**right.tensors, "norm.weight": -right.tensors["norm.weight"]}
    Checkpoint("", right.config, tensors).write(tmp_path)
    found = examine(DoctorOptions(target=TARGET, draft=str(tmp_path), **FEW))
    assert "hardly any first draft token is accepted" in said(found, "bad")


def test_what_cannot_be_loaded_is_refused(head, tmp_path):
    with pytest.raises(ModelError, match="cannot load a tokenizer"):
        examine(DoctorOptions(draft=str(tmp_path / "nothing"), **FEW))
    right = Checkpoint.read(head)
    Checkpoint("", {**right.config, "vocab_size": 64}, right.tensors).write(tmp_path)
    with pytest.raises(ModelError, match="it has a vocabulary of 64 tokens"):
        examine(DoctorOptions(target=TARGET, draft=str(tmp_path), **FEW))
    with pytest.raises(InvalidRequest, match="needs a trained head"):
        examine(DoctorOptions(method="eagle", **FEW))
