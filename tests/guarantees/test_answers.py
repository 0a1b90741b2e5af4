"""What the family that ships says, and that it says the same where its drafter cannot be loaded."""

import re
import shutil
from pathlib import Path

import pytest

from foreword import LLM, SamplingParams, bundled

COMMON = set("the a of and to in is that for it as with on be by are this an or from at not your you can".split())
QUESTIONS = ('Define the word "river".', "How can I learn to cook?", "Write a short note to thank a friend.")
GREEDY = SamplingParams(temperature=0, max_tokens=48)


def test_the_family_answers_in_english():
    llm = LLM(nodes=4)
    words = []
    for question in QUESTIONS:
        answer = llm.chat([{"role": "user", "content": question}], GREEDY)
        words += re.findall(r"[a-z]+", answer.text.lower())
        assert answer.text.isascii()
        assert answer.stats.accepted > 0
    # In English prose about four words of ten are among the commonest; in noise or code hardly any.
    assert len(words) > 30
    assert sum(word in COMMON for word in words) > 0.2 * len(words)


def test_a_draft_model_that_cannot_be_loaded_costs_no_text(tmp_path: Path):
    broken = Path(shutil.copytree(bundled.draft(), tmp_path / "draft"))
    weights = broken / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:1000])
    message = [{"role": "user", "content": QUESTIONS[0]}]
    with pytest.warns(UserWarning, match="cannot load the drafter, so decoding runs without drafting") as said:
        llm = LLM(draft=broken, nodes=4)
    assert len(said) == 1
    assert llm.chat(message, GREEDY).tokens == LLM(method="none").chat(message, GREEDY).tokens
