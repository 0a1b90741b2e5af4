"""Published models run natively, and drafts change no token of their text."""

import json
from dataclasses import replace
from pathlib import Path

import pytest

from foreword import LLM, Completion, SamplingParams
from foreword.model import Mode
from real.published import DRAFTS, opened
from running import emptied

pytestmark = pytest.mark.real

PROMPTS = [
    [{"role": "user", "content": json.loads(line)["prompt"]}]
    for line in Path(__file__).with_name("spec_bench.jsonl").read_text().splitlines()
]
LENGTH = 24
GREEDY = SamplingParams(temperature=0, max_tokens=LENGTH, method="none")
HEATS = (0.0, 0.8)
PAGE = 64
"""Tokens of keys and values that are held or given up together."""


def answers(llm: LLM, method: str, heat: float, *prompts: int) -> list[Completion]:
    """Answer the prompts together; without numbers, all of them."""
    numbers = prompts or range(len(PROMPTS))
    params = [
        replace(GREEDY, method=method, temperature=heat, seed=number)
        for number in numbers
    ]
    return llm.chat([PROMPTS[number] for number in numbers], params)


def tokens(completions: list[Completion]) -> list[list[int]]:
    return [completion.tokens for completion in completions]


def accepted(completions: list[Completion]) -> int:
    return sum(completion.stats.accepted for completion in completions)


@pytest.fixture(scope="package")
def plain(llm: LLM) -> dict[float, list[list[int]]]:
    """The plain texts of all prompts, by temperature."""
    return {heat: tokens(answers(llm, "none", heat)) for heat in HEATS}


def methods(name: str) -> list[str]:
    """The methods that draft for a model."""
    return ["ngram", "lm", "cascade"] if name in DRAFTS else ["ngram", "suffix"]


def test_model_runs_natively(llm):
    capability = llm.target.capability
    assert (capability.backend, capability.mode) == ("native", Mode.TREE)
    assert capability.refused == ()


def test_drafted_text_is_the_plain_one(llm, name, plain):
    for method in methods(name):
        for heat, texts in plain.items():
            drafted = answers(llm, method, heat)
            assert tokens(drafted) == texts, (method, heat)
            assert accepted(drafted) > len(PROMPTS) // 4, (method, heat)
            assert {answer.undrafted for answer in drafted} == {None}
    assert len({tuple(text) for texts in plain.values() for text in texts}) > 60


def test_text_alone_is_the_one_in_company(llm, name, plain):
    for method in ("none", methods(name)[-1]):
        for heat, texts in plain.items():
            for number in range(1, len(PROMPTS), 13):
                (alone,) = answers(llm, method, heat, number)
                assert alone.tokens == texts[number], (method, heat, number)


def test_text_after_preemption_is_the_plain_one(llm, name, plain):
    numbers = [6, 7, 8, 9, 10, 12, 13, 15]
    target = llm.target
    emptied(target)
    before, held = llm.engine.load.preemptions, target.cache_tokens
    target.cache_tokens = 6 * PAGE
    try:
        drafted = answers(llm, methods(name)[-1], 0.8, *numbers)
    finally:
        target.cache_tokens = held
    assert llm.engine.load.preemptions > before
    assert tokens(drafted) == [plain[0.8][number] for number in numbers]
    assert accepted(drafted) > 0


def test_drafts_change_no_token_with_int8_keys(name):
    numbers = range(0, len(PROMPTS), 4)
    with opened(name, kv="int8") as llm:
        assert llm.target.capability.backend == "native"
        for heat in HEATS:
            texts = tokens(answers(llm, "none", heat, *numbers))
            drafted = answers(llm, methods(name)[1], heat, *numbers)
            assert tokens(drafted) == texts
            assert accepted(drafted) > 0
