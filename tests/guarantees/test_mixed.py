"""A stream of requests of many kinds, drafted as well in a batch as alone, and no text
changes. The number of draft tokens is fixed: no clock plays a part.
"""

from functools import cache
from random import Random

import numpy as np
import pytest

from foreword import LLM, SamplingParams, bundled
from foreword.budget import AdaptiveBudget
from foreword.draft import method
from foreword.draft.base import Drafter
from foreword.draft.ensemble.recipe import shipped
from foreword.model import Model, load_tokenizer
from foreword.prompts import load
from foreword_lab.bench.stats import speedup
from grids import slow_case
from running import Answer, Case, count_accepted, drafter, engine, finish, of_length

KINDS = {
    "greedy": {"temperature": 0.0},
    "warm": {},
    "top_p .95": {"top_p": 0.95},
    "top_k 5": {"top_k": 5},
    "top_k 1": {"top_k": 1},
    "min_p .3": {"min_p": 0.3},
    "typical_p .5": {"typical_p": 0.5},
    "penalties": {
        "repetition_penalty": 1.2,
        "presence_penalty": 0.3,
        "frequency_penalty": 0.2,
    },
    "logit bias": {"logit_bias": {262: 2.0, 280: -100.0}},
    "bad words": {"bad_word_ids": ((262,), (280, 300))},
    "hot": {"temperature": 1.5},
}
MODELS = ("lm", "eagle", "dspark", "medusa")
LOOKUPS = ("ngram", "suffix", "recycle", "lookahead", "predicted")
NODES = 6
NO_WORSE = 0.98
"""Least share of the tokens a round that a kind has alone."""


@cache
def target() -> Model:
    return Model.load(bundled.target())


@cache
def texts() -> list[tuple[int, ...]]:
    tokenizer = load_tokenizer(bundled.target())
    return [
        tuple(tokenizer(prompt.messages[-1]["content"])["input_ids"][:40])
        for prompt in load("in-domain")
    ]


def drafter_of(name: str) -> Drafter:
    kind = method(name)
    if not kind.about.needs:
        return drafter(name, str(target().dtype).removeprefix("torch."))
    return kind.load(shipped(kind, name), target(), load_tokenizer(bundled.target()))


def stream(count: int, length: int) -> list[tuple[str, Case]]:
    """So many requests of each kind, in an order that mixes them."""
    asked = [
        (
            name,
            Case(
                texts()[turn % len(texts())],
                SamplingParams(**{"temperature": 0.8, "seed": turn} | about),
            ),
        )
        for name, about in (
            {
                key: {**kind, "max_tokens": length, "ignore_eos": True}
                for key, kind in KINDS.items()
            }
        ).items()
        for turn in range(count)
    ]
    Random(0).shuffle(asked)
    return asked


def counted(answers: list[Answer]) -> np.ndarray:
    """Tokens and rounds of each request."""
    return np.array(
        [(len(one.tokens), one.request.stats.rounds) for one in answers], dtype=float
    )


def check(name: str, asked: list[tuple[str, Case]]) -> None:
    loop = engine(target(), drafter_of(name), NODES)
    together = finish(loop, [request for _, request in asked])
    assert loop.failed is None
    for kind in KINDS:
        ours = [one for (of, _), one in zip(asked, together, strict=True) if of == kind]
        alone = finish(
            engine(target(), drafter_of(name), NODES),
            [request for of, request in asked if of == kind],
        )
        assert [answer.said for answer in ours] == [answer.said for answer in alone]
        assert count_accepted(ours) > 0, f"{kind}: no draft token was accepted"
        kept = speedup(counted(ours), counted(alone))
        assert kept.high >= NO_WORSE, (
            f"{kind}: in a batch {kept} of the tokens a round that it has by itself"
        )


@pytest.mark.slow
@pytest.mark.parametrize("name", [*MODELS, *LOOKUPS])
def test_no_kind_of_five_hundred_requests_costs_another_its_drafts(name: str) -> None:
    check(name, stream(46, 24))


@pytest.mark.parametrize("name", ["lm", slow_case("dspark")])
def test_adaptive_budget_drafts_on_after_filtered_requests(name: str) -> None:
    llm = LLM(method=name, budget=AdaptiveBudget({1: 1.01, 64: 1.64}))
    asked = [
        request.params
        for kind, request in stream(1, 16)
        if kind not in ("greedy", "warm", "hot")
    ]
    llm.generate([list(texts()[0])] * len(asked), asked)
    calm = [of_length(32, heat, seed=1) for heat in (0.0, 0.8)]
    answers = llm.generate([list(texts()[1])] * 2, calm)
    assert sum(one.stats.drafted for one in answers) > 0
    assert sum(one.stats.accepted for one in answers) > 0


def test_the_five_lines_of_the_readme_are_drafted() -> None:
    # A fixed number: the measured one depends on the clock, and shapes that are checked
    # at every call are slow.
    params = SamplingParams(temperature=0.8, top_p=0.95, seed=7, max_tokens=32, nodes=8)
    messages = [{"role": "user", "content": 'Define the word "river".'}]
    llm = LLM()
    answers = [llm.chat(messages, params) for _ in range(2)]
    plain = LLM(method="none").chat(messages, params)
    for answer in answers:
        assert answer.tokens == plain.tokens
        assert answer.stats.drafted > 0
        assert answer.stats.accepted > 0
