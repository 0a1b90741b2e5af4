"""The bundled models answer in English, even if their drafter cannot be loaded."""

import re
import shutil
from dataclasses import replace
from pathlib import Path

import pytest

from foreword import LLM, ModelError, SamplingParams, bundled

COMMON = set(
    "the a of and to in is that for it as with on be by are this an or from at "
    "not your you can".split()
)
QUESTIONS = (
    'Define the word "river".',
    "How can I learn to cook?",
    "Write a short note to thank a friend.",
)
GREEDY = SamplingParams(temperature=0, max_tokens=32)


def test_bundled_models_answer_in_english():
    llm = LLM(nodes=4)
    words = []
    for question in QUESTIONS:
        answer = llm.chat([{"role": "user", "content": question}], GREEDY)
        words += re.findall(r"[a-z]+", answer.text.lower())
        assert answer.text.isascii()
        assert answer.stats.accepted > 0
    # In English prose about four words of ten are among the commonest; in noise or code
    # hardly any.
    assert len(words) > 30
    assert sum(word in COMMON for word in words) > 0.2 * len(words)


@pytest.fixture
def broken(tmp_path: Path) -> Path:
    """A draft model whose weights are cut off."""
    folder = Path(shutil.copytree(bundled.draft(), tmp_path / "draft"))
    weights = folder / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:1000])
    return folder


MESSAGE = [{"role": "user", "content": QUESTIONS[0]}]
LOST = "cannot load the drafter, so decoding runs without drafting"


def test_default_draft_model_that_cannot_be_loaded_changes_no_text(broken, monkeypatch):
    monkeypatch.setattr(bundled, "draft", lambda: broken)
    with pytest.warns(UserWarning, match=LOST) as said:
        llm = LLM()
    assert len(said) == 1
    answer = llm.chat(MESSAGE, GREEDY)
    assert answer.tokens == LLM(method="none").chat(MESSAGE, GREEDY).tokens
    assert "draft" in answer.undrafted
    assert answer.stats.undrafted == {"failed": answer.stats.rounds}


def test_draft_model_that_the_caller_named_must_load(broken):
    for named in (
        {"draft": broken},
        {"draft": broken, "method": "lm"},
        {"draft": {"lm": broken}},
    ):
        with pytest.raises(ModelError, match="cannot load"):
            LLM(**named)


def test_drafter_that_a_request_named_says_why_it_is_missing(broken):
    llm = LLM(method="none", draft={"none": None, "lm": broken})
    with pytest.warns(UserWarning, match=LOST):
        answer = llm.chat(MESSAGE, replace(GREEDY, method="lm"))
    plain = llm.chat(MESSAGE, GREEDY)
    assert answer.tokens == plain.tokens
    assert "cannot load" in answer.undrafted
    assert plain.undrafted is None
