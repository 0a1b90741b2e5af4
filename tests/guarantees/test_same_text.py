"""Law 2: same seed, same text.

No drafter, number or shape of guesses, company or chunk changes a token.
"""

import warnings
from functools import cache
from itertools import product

import pytest
import torch

from drafters import Foresight, RandomTree, known
from foreword.budget import DraftBudget
from foreword.draft import METHODS
from foreword.draft.base import Drafter
from foreword.engine import Engine
from foreword.native.cpu import fast_bfloat16
from foreword.registry import BUDGETS as WIDTHS_BY_NAME
from foreword.types import SamplingParams
from running import (
    Answer,
    Request,
    drafter,
    engine,
    finish,
    plain,
    prompts,
    target,
    tokenizer,
)

SLOW_BFLOAT16 = pytest.mark.skipif(not fast_bfloat16(), reason="slow bfloat16")
DTYPES = ["float32", pytest.param("bfloat16", marks=SLOW_BFLOAT16)]
BUDGETS = [
    (4, "float32", ()),
    (8, "bfloat16", (SLOW_BFLOAT16,)),
    (3, "bfloat16", (SLOW_BFLOAT16, pytest.mark.slow)),
]
HEADS = ("eagle", "dflash", "medusa")
"""In float32 they are torch's; the slow tests try them so, the others
`dspark` alone.
"""
SETTINGS = tuple(product((0.0, 0.7, 1.3), (1.0, 0.9)))
"""(temperature, top_p)."""
ALONE = ("lm", "quantized", "tree")
GUESSERS = (*(name for name in METHODS if name != "none"), "chain", "tree", "wrong")


def requests(turn: int) -> list[Request]:
    """Five requests that differ in everything; another pairing of prompts and settings
    for each turn.
    """
    rows = []
    for i, prompt in enumerate(prompts()):
        temperature, top_p = SETTINGS[(i + turn) % len(SETTINGS)]
        length = 24 + 4 * ((i + turn) % 3)
        params = SamplingParams(
            temperature=temperature,
            top_p=top_p,
            seed=100 * turn + i,
            max_tokens=length,
            ignore_eos=True,
        )
        rows.append(Request(prompt, params))
    return rows


@cache
def wanted(dtype: str, turn: int) -> list[Answer]:
    return plain(target(dtype), requests(turn))


def guesser(name: str, dtype: str, answers: list[Answer]) -> Drafter:
    made = {
        "chain": lambda: Foresight(known(answers), spoilt=0.3),
        "tree": lambda: RandomTree(known(answers), spoilt=0.3),
        "wrong": lambda: Foresight(known(answers), spoilt=1.0),
    }
    return made[name]() if name in made else drafter(name, dtype)


def check(
    name: str,
    dtype: str,
    turn: int,
    nodes: DraftBudget | int,
    *,
    chunk: int,
    slots: int = 5,
) -> None:
    answers = wanted(dtype, turn)
    loop = engine(
        target(dtype), guesser(name, dtype, answers), nodes, chunk=chunk, slots=slots
    )
    got = finish(loop, requests(turn))
    assert [answer.said for answer in got] == [answer.said for answer in answers]
    assert loop.failed is None
    accepted = sum(answer.sequence.stats.accepted for answer in got)
    assert (accepted == 0) == (name == "wrong"), (
        "a text that nobody guessed at proves nothing"
    )


@pytest.mark.sample(5)
@pytest.mark.parametrize(
    ("name", "nodes", "dtype"),
    [
        pytest.param(
            name, nodes, dtype, marks=[*marks, pytest.mark.slow] if rare else marks
        )
        for name in GUESSERS
        for nodes, dtype, marks in BUDGETS
        for rare in [dtype == "float32" and name in HEADS]
    ],
)
def test_the_text_is_that_of_plain_decoding_in_any_company(name, nodes, dtype):
    check(name, dtype, nodes % 3, nodes, chunk=(512, 7, 16)[nodes % 3])


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=() if name in ALONE else pytest.mark.slow)
        for name in GUESSERS
    ],
)
def test_the_text_is_that_of_plain_decoding_alone(name):
    check(name, "float32", 1, 5, chunk=512, slots=1)


@pytest.mark.slow
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("turn", range(len(SETTINGS)))
@pytest.mark.parametrize("name", GUESSERS)
def test_every_combination(name, turn, dtype):
    for nodes, (chunk, slots) in product(range(1, 9), ((7, 1), (16, 5), (512, 5))):
        check(name, dtype, turn, nodes, chunk=chunk, slots=slots)


@pytest.mark.sample(5)
@pytest.mark.parametrize("name", ["lm", "ngram", "slem"])
@pytest.mark.parametrize("policy", ["heuristic", "confidence", "svip", "adaedl"])
def test_the_text_is_that_of_plain_decoding_whatever_decides_how_much_is_guessed(
    policy, name
):
    check(name, "float32", 2, WIDTHS_BY_NAME[policy](), chunk=512)


def test_plain_decoding_does_not_depend_on_company_or_chunks_either():
    for turn, chunk, slots in ((0, 7, 5), (1, 16, 2), (2, 512, 5)):
        got = finish(engine(target(), chunk=chunk, slots=slots), requests(turn))
        assert [answer.said for answer in got] == [
            answer.said for answer in wanted("float32", turn)
        ]


@pytest.mark.sample(3)
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", ["lm", "tree"])
def test_a_long_prompt_may_be_read_in_any_chunks(name, dtype):
    """Attention over hundreds of keys sums in blocks; their borders must not show."""
    prompt = tuple(token for _ in range(12) for text in prompts() for token in text)[
        :410
    ]
    asked = [
        Request(
            prompt[:length],
            SamplingParams(temperature=t, seed=length, max_tokens=16, ignore_eos=True),
        )
        for length, t in ((180, 1.0), (250, 0.0), (300, 1.0), (410, 1.0))
    ]
    want = plain(target(dtype), asked)
    for chunk in (512, 100):
        got = finish(
            engine(target(dtype), guesser(name, dtype, want), 5, chunk=chunk), asked
        )
        assert [answer.said for answer in got] == [answer.said for answer in want]


def favour_even_tokens(tokens: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
    """A processor that reads the tokens before it and writes to what it is given."""
    scores[:, int(tokens[0, -1]) % 2 :: 2] += 0.5
    return scores


def everything(**changes: object) -> SamplingParams:
    """Every parameter off its neutral value."""
    values = dict(
        temperature=0.9,
        top_k=200,
        top_p=0.95,
        min_p=0.001,
        typical_p=0.98,
        repetition_penalty=1.15,
        presence_penalty=0.3,
        frequency_penalty=0.2,
        logit_bias={11: 1.5, 300: -4.0},
        bad_word_ids=((262,), (280, 300)),
        min_tokens=6,
        max_tokens=32,
        stop_token_ids=(13, 199),
        logprobs=3,
        seed=5,
        processors=(favour_even_tokens,),
    )
    return SamplingParams(**(values | changes))


ASKED = {
    "everything": everything(),
    "everything, greedy": everything(temperature=0.0),
    "penalties": SamplingParams(
        repetition_penalty=1.3, presence_penalty=0.5, frequency_penalty=0.5, seed=1
    ),
    "filters": SamplingParams(top_k=40, min_p=0.02, typical_p=0.9, seed=2, logprobs=0),
    "logprobs": SamplingParams(temperature=0.0, logprobs=5, ignore_eos=True),
    "stop strings": SamplingParams(temperature=0.7, stop=(" the", ". ", "\n"), seed=3),
    "top_p": SamplingParams(temperature=0.8, top_p=0.9, seed=4),
    "top_k": SamplingParams(temperature=0.8, top_k=5, seed=5),
    "one token left": SamplingParams(
        temperature=0.8, top_k=1, repetition_penalty=1.05, seed=6
    ),
    "min_p": SamplingParams(temperature=0.8, min_p=0.3, seed=7),
    "typical_p": SamplingParams(temperature=0.8, typical_p=0.5, seed=8),
    "logit bias": SamplingParams(
        temperature=0.8, logit_bias={262: 3.0, 280: -100.0}, seed=9
    ),
    "processors": SamplingParams(
        temperature=0.8, processors=(favour_even_tokens,), seed=10
    ),
    "bad words": SamplingParams(
        temperature=0.8, bad_word_ids=((262,), (280, 300)), seed=11
    ),
}
MORE = tuple(ASKED)[6:]
"""They are asked of few prompts: each is one parameter of `everything`, looked at for
being drafted for.
"""


@cache
def asked(name: str) -> list[Request]:
    params = ASKED[name]
    params = SamplingParams(
        **{key: getattr(params, key) for key in params.__slots__} | {"max_tokens": 24}
    )
    return [
        Request(prompt, params) for prompt in prompts()[: 2 if name in MORE else None]
    ]


@pytest.mark.sample(5)
@pytest.mark.parametrize("drafter_name", ["lm", "tree"])
@pytest.mark.parametrize("name", ASKED)
def test_nothing_vanishes_when_guessing_is_on(name, drafter_name):
    want = _asked_plainly(name)
    loop = engine(target(), guesser(drafter_name, "float32", want), 4, chunk=16)
    got = finish(loop, asked(name))
    assert [answer.said for answer in got] == [answer.said for answer in want]
    assert_guessed_at(got, loop)
    for ours, theirs in zip(got, want, strict=True):
        ours, theirs = (
            [one for delta in answer.deltas for one in delta.logprobs]
            for answer in (ours, theirs)
        )
        assert [one.token for one in ours] == [one.token for one in theirs]
        assert [one.logprob for one in ours] == pytest.approx(
            [one.logprob for one in theirs], abs=1e-4
        )
        assert [[token for token, _ in one.top] for one in ours] == [
            [token for token, _ in one.top] for one in theirs
        ]


def assert_guessed_at(answers: list[Answer], loop: Engine) -> None:
    """A text that nobody guessed at proves nothing."""
    assert loop.failed is None
    assert sum(answer.sequence.stats.drafted for answer in answers) > 0
    assert sum(answer.sequence.stats.accepted for answer in answers) > 0


@pytest.mark.slow
@pytest.mark.parametrize("drafter_name", ["lm", "dspark", "recycle"])
def test_one_drafter_goes_on_through_requests_of_every_kind(drafter_name):
    """What it learns from one kind spoils it for no other, and changes no text."""
    loop = engine(target(), guesser(drafter_name, "float32", []), 4, chunk=16)
    for name in [*ASKED, *ASKED]:
        got = finish(loop, asked(name))
        assert [answer.said for answer in got] == [
            answer.said for answer in _asked_plainly(name)
        ]
        assert_guessed_at(got, loop)


@cache
def _asked_plainly(name: str) -> list[Answer]:
    return plain(target(), asked(name))


def test_the_cases_above_do_what_they_are_for():
    """A stop string that never comes, or a logprob that is not reported, would test
    nothing.
    """
    assert any(
        answer.sequence.finish_reason == "stop"
        for answer in _asked_plainly("stop strings")
    )
    assert all(
        len(answer.deltas[0].logprobs[0].top) == 5
        for answer in _asked_plainly("logprobs")
    )
    texts = {
        name: tuple(map(tuple, (answer.tokens for answer in _asked_plainly(name))))
        for name in ASKED
    }
    assert len(set(texts.values())) == len(texts)
    assert tokenizer().decode(_asked_plainly("logprobs")[0].tokens)


def test_too_many_guesses_turn_guessing_off_and_change_nothing():
    want = wanted("float32", 0)

    class TooLong(Foresight):
        def propose(self, batch, nodes):
            return super().propose(batch, [count + 1 for count in nodes])

    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        got = finish(engine(target(), TooLong(known(want)), 3), requests(0))
    assert [answer.said for answer in got] == [answer.said for answer in want]
    assert len(said) == 1
    assert "drafter failed" in str(said[0].message)
