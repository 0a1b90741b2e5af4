"""Same seed, same text: no drafter, draft, batch or chunk changes a token."""

import warnings
from dataclasses import replace
from functools import cache, partial
from itertools import product

import pytest
import torch

from drafters import Foresight, RandomTree, known
from foreword.budget import DraftBudget
from foreword.draft import METHODS
from foreword.draft.base import Drafter
from foreword.engine import Engine
from foreword.native.cpu import fast_bfloat16
from foreword.registry import BUDGETS
from foreword.types import SamplingParams
from running import (
    Answer,
    Case,
    drafter,
    engine,
    finish,
    outputs,
    plain,
    prompts,
    target,
    tokenizer,
)

QUICK = "bfloat16" if fast_bfloat16() else "float32"
"""The dtype of the tests whose subject it is not; in C it takes a third of the time."""
SLOW_HERE = pytest.mark.skipif(not fast_bfloat16(), reason="slow bfloat16")
DTYPES = ["float32", pytest.param("bfloat16", marks=SLOW_HERE)]
SETTINGS = tuple(product((0.0, 0.7, 1.3), (1.0, 0.9)))
"""(temperature, top_p)."""
DRAFTERS = (*(name for name in METHODS if name != "none"), "chain", "tree", "wrong")
COVERED = [
    ("lm", "float32", 4, 7, 5),
    ("tree", "float32", 8, 16, 1),
    ("suffix", "float32", "confidence", 512, 5),
    ("lm", QUICK, 8, 512, 1),
    ("lm", QUICK, "confidence", 16, 5),
    ("tree", QUICK, 4, 512, 5),
    ("wrong", QUICK, 8, 7, 5),
    ("suffix", QUICK, 4, 7, 1),
    ("dspark", QUICK, "confidence", 7, 1),
    ("layers", QUICK, 4, 16, 1),
    ("slem", QUICK, "confidence", 512, 5),
    ("cascade", QUICK, "heuristic", 16, 5),
]
"""(drafter, dtype, budget, chunk, slots): one drafter of each kind, and each pair of
the others, with five prompts of other temperatures and filters. `make test-all` runs
all; every method keeps tests/draft/test_contract.py.
"""


def requests(turn: int) -> list[Case]:
    """Five requests that differ in everything; each turn pairs them anew."""
    rows = []
    for i, prompt in enumerate(prompts()):
        temperature, top_p = SETTINGS[(i + turn) % len(SETTINGS)]
        drawn = dict(temperature=temperature, top_p=top_p, seed=100 * turn + i)
        long = dict(max_tokens=24 + 4 * ((i + turn) % 3), ignore_eos=True)
        params = SamplingParams(**drawn, **long, logprobs=2 if i % 2 else None)
        rows.append(Case(prompt, params))
    return rows


@cache
def wanted(dtype: str, turn: int) -> list[Answer]:
    return plain(target(dtype), requests(turn))


def drafter_of(name: str, dtype: str, answers: list[Answer]) -> Drafter:
    made = {
        "chain": lambda: Foresight(known(answers), spoilt=0.3),
        "tree": lambda: RandomTree(known(answers), spoilt=0.3),
        "wrong": lambda: Foresight(known(answers), spoilt=1.0),
    }
    return made[name]() if name in made else drafter(name, dtype)


def check_same(got: list[Answer], want: list[Answer], loop: Engine) -> int:
    """Check texts and all bits of log-probabilities; return the accepted number."""
    assert outputs(got) == outputs(want)
    assert loop.failed is None
    assert sum(answer.request.stats.drafted for answer in got) > 0
    assert [answer.logprobs for answer in got] == [answer.logprobs for answer in want]
    return sum(answer.request.stats.accepted for answer in got)


def check(
    name: str, dtype: str, turn: int, budget: DraftBudget | int, **reading: int
) -> None:
    answers = wanted(dtype, turn)
    own = drafter_of(name, dtype, answers)
    loop = engine(target(dtype), own, budget, **reading)
    accepted = check_same(finish(loop, requests(turn)), answers, loop)
    # a text without accepted draft tokens proves nothing
    assert (accepted == 0) == (name == "wrong")


@pytest.mark.parametrize(("name", "dtype", "budget", "chunk", "slots"), COVERED)
def test_text_is_that_of_plain_decoding(name, dtype, budget, chunk, slots):
    own = budget if isinstance(budget, int) else BUDGETS[budget]()
    check(name, dtype, dtype == "float32", own, chunk=chunk, slots=slots)


@pytest.mark.slow
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("turn", range(len(SETTINGS)))
@pytest.mark.parametrize("name", DRAFTERS)
def test_every_combination(name, turn, dtype):
    """Every number of draft tokens meets every way of reading, over the turns."""
    ways = ((7, 1), (16, 5), (512, 1), (512, 5))
    for nodes in range(1, 9):
        chunk, slots = ways[(nodes + turn) % len(ways)]
        check(name, dtype, turn, nodes, chunk=chunk, slots=slots)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["lm", "ngram", "slem"])
@pytest.mark.parametrize("policy", ["heuristic", "confidence"])
def test_every_budget_policy(policy, name):
    check(name, "float32", 2, BUDGETS[policy](), chunk=512, slots=5)


def test_plain_decoding_does_not_depend_on_batch_or_chunk():
    for dtype, turn, chunk, slots in (("float32", 1, 7, 5), (QUICK, 0, 16, 2)):
        got = finish(engine(target(dtype), chunk=chunk, slots=slots), requests(turn))
        assert outputs(got) == outputs(wanted(dtype, turn))


@pytest.mark.sample(3)
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", ["lm", "tree"])
def test_long_prompt_may_be_read_in_any_chunks(name, dtype):
    """Attention over hundreds of keys sums in blocks; their borders must not show."""
    every = [token for text in prompts() for token in text] * 12
    long, asked = SamplingParams(max_tokens=10, ignore_eos=True, logprobs=0), []
    for length, heat in ((180, 1.0), (250, 0.0), (410, 1.0)):
        params = replace(long, temperature=heat, seed=length)
        asked.append(Case(tuple(every[:length]), params))
    want = plain(target(dtype), asked)
    loop = engine(target(dtype), drafter_of(name, dtype, want), 5, chunk=100)
    assert check_same(finish(loop, asked), want, loop) > 0


def test_coldest_temperatures_write_the_greedy_text():
    """At 1e-6 tokens are still sampled, and none of these texts has a near-tie."""
    texts: list[list[int]] = []
    for temperature in (0.0, 1e-6, 1e-7, 1e-38):
        params = SamplingParams(temperature=temperature, seed=3, max_tokens=12)
        cases = [Case(prompt, params) for prompt in prompts()[:2]]
        want = plain(target(QUICK), cases)
        loop = engine(target(QUICK), drafter_of("chain", QUICK, want), 4)
        assert check_same(finish(loop, cases), want, loop) > 0
        texts.append([token for answer in want for token in answer.tokens])
    assert all(text == texts[0] for text in texts)


def favour_even_tokens(tokens: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
    """A processor that reads the tokens before it and writes to what it is given."""
    scores[:, int(tokens[0, -1]) % 2 :: 2] += 0.5
    return scores


def everything(**changes: object) -> SamplingParams:
    """Every parameter off its neutral value."""
    filters = dict(top_k=200, top_p=0.95, min_p=0.001, typical_p=0.98)
    penalties = dict(presence_penalty=0.3, frequency_penalty=0.2)
    words = dict(bad_word_ids=((262,), (280, 300)), stop_token_ids=(13, 199))
    values = dict(
        filters | penalties | words,
        temperature=0.9,
        repetition_penalty=1.15,
        logit_bias={11: 1.5, 300: -4.0},
        min_tokens=6,
        max_tokens=32,
        logprobs=3,
        seed=5,
        processors=(favour_even_tokens,),
    )
    return SamplingParams(**(values | changes))


warm = partial(SamplingParams, temperature=0.8)
PENALTIES = dict(presence_penalty=0.5, frequency_penalty=0.5)
ASKED = {
    "everything": everything(),
    "everything, greedy": everything(temperature=0.0),
    "penalties": SamplingParams(**PENALTIES, repetition_penalty=1.3, seed=1),
    "filters": SamplingParams(top_k=40, min_p=0.02, typical_p=0.9, seed=2, logprobs=0),
    "logprobs": SamplingParams(temperature=0.0, logprobs=5, ignore_eos=True),
    "stop strings": SamplingParams(temperature=0.7, stop=(" the", ". ", "\n"), seed=3),
    "top_p": warm(top_p=0.9, seed=4),
    "top_k": warm(top_k=5, seed=5),
    "one token left": warm(top_k=1, repetition_penalty=1.2, seed=6),
    "min_p": warm(min_p=0.3, seed=7),
    "typical_p": warm(typical_p=0.5, seed=8),
    "logit bias": warm(logit_bias={262: 3.0, 280: -100.0}, seed=9),
    "processors": warm(processors=(favour_even_tokens,), seed=10),
    "bad words": warm(bad_word_ids=((262,), (280, 300)), seed=11),
}
FEW = 2
"""Prompts of those after the first six: each is one parameter of `everything`."""


@cache
def asked(name: str) -> list[Case]:
    params = replace(ASKED[name], max_tokens=24)
    few = FEW if name in tuple(ASKED)[6:] else None
    return [Case(prompt, params) for prompt in prompts()[:few]]


@cache
def asked_plainly(name: str, dtype: str) -> list[Answer]:
    return plain(target(dtype), asked(name))


@cache
def mixed() -> tuple[list[Case], list[Answer]]:
    """One request with each parameter, and what plain decoding makes of it."""
    every = [asked(name)[1] for name in ASKED]
    return every, plain(target(QUICK), every)


@pytest.mark.parametrize("name", ["lm", "tree"])
def test_every_parameter_has_its_effect_on_drafted_text(name):
    every, want = mixed()
    loop = engine(target(QUICK), drafter_of(name, QUICK, want), 4, chunk=16)
    got = finish(loop, every)
    assert check_same(got, want, loop) > 0
    assert all(answer.request.stats.drafted > 0 for answer in got)
    # a stop string that never comes, or a log-probability that is not reported, would
    # test nothing
    found = dict(zip(ASKED, want, strict=True))
    assert found["stop strings"].request.finish_reason == "stop"
    assert len(found["logprobs"].deltas[0].logprobs[0].top) == 5
    assert len({tuple(answer.tokens) for answer in want}) == len(want)
    assert tokenizer().decode(found["logprobs"].tokens)


@pytest.mark.slow
@pytest.mark.parametrize("drafter_name", ["lm", "tree"])
@pytest.mark.parametrize("name", ASKED)
def test_every_parameter_alone(name, drafter_name):
    want = asked_plainly(name, "float32")
    loop = engine(target(), drafter_of(drafter_name, "float32", want), 4, chunk=16)
    assert check_same(finish(loop, asked(name)), want, loop) > 0


@pytest.mark.slow
@pytest.mark.parametrize("drafter_name", ["lm", "dspark", "recycle"])
def test_one_drafter_goes_on_through_requests_of_every_kind(drafter_name):
    """What it learns from one kind spoils it for no other, and changes no text."""
    loop = engine(target(), drafter_of(drafter_name, "float32", []), 4, chunk=16)
    for name in [*ASKED, *ASKED]:
        want = asked_plainly(name, "float32")
        assert check_same(finish(loop, asked(name)), want, loop) > 0


def test_too_many_draft_tokens_end_drafting_and_change_no_text():
    want = wanted(QUICK, 0)

    class TooLong(Foresight):
        def propose(self, batch, nodes):
            return super().propose(batch, [count + 1 for count in nodes])

    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        got = finish(engine(target(QUICK), TooLong(known(want)), 3), requests(0))
    assert outputs(got) == outputs(want)
    assert len(said) == 1
    assert "drafter failed" in str(said[0].message)
