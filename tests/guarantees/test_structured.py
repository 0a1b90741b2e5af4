"""Answers that follow a schema, an expression or a grammar: the text of plain decoding,
and valid, with every drafter.
"""

import json
import re
from functools import cache

import jsonschema_rs
import pytest
import torch
from scipy.stats import kstest

from foreword.draft import METHODS
from foreword.model import Model
from foreword.native.cpu import fast_bfloat16
from foreword.sampling.logits import weights
from foreword.sampling.noise import seed_of
from foreword.types import Request
from foreword.types.params import SamplingParams
from foreword.verify import RULES
from grids import grid
from running import (
    Answer,
    Case,
    distribution,
    draft,
    drafter,
    engine,
    finish,
    grammars,
    plain,
    prompts,
    target,
)

METHODS_THAT_DRAFT = tuple(name for name in METHODS if name != "none")
PERSON = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "minLength": 1, "maxLength": 12},
        "age": {"type": "integer", "minimum": 0, "maximum": 120},
        "city": {"enum": ["Paris", "Zürich", "東京"]},
        "tags": {"type": "array", "items": {"type": "boolean"}, "maxItems": 2},
    },
    "required": ["name", "age", "city", "tags"],
}
PHONE, SUMS = (
    r"[0-9]{3}-[0-9]{4} (home|wörk)",
    'root ::= number (" + " number)* " = " number\nnumber ::= [0-9]{1,3}',
)
FORMS = (
    dict(json_schema=PERSON),
    dict(regex=PHONE),
    {},
    dict(grammar=SUMS),
    dict(json_object=True),
    dict(json_schema=PERSON, ignore_eos=True, repetition_penalty=1.2, top_p=0.9),
)
HEATS = (0.0, 0.7, 1.3)
DTYPE = "bfloat16" if fast_bfloat16() else "float32"
COVERED = (("lm", 1), ("suffix", 2), ("dspark", 0))
"""Methods of `make test`, each with another pairing of forms and temperatures: a model,
a lookup and a head. `make test-all` runs all methods with all pairings.
"""


def loaded() -> Model:
    return target(DTYPE)


def requests(turn: int) -> list[Case]:
    """Every form, and none, at a temperature that changes from turn to turn."""
    asked = []
    for at, form in enumerate(FORMS):
        heat = HEATS[(at + turn) % 3]
        params = SamplingParams(
            **({"temperature": heat, "seed": 10 * turn + at, "max_tokens": 56} | form)
        )
        asked.append(Case(prompts()[at % 5], params))
    return asked


@cache
def wanted(turn: int) -> list[Answer]:
    return plain(loaded(), requests(turn))


def check_drafted(answers: list[Answer]) -> None:
    """A text for which nothing was drafted proves nothing."""
    assert {answer.sequence.undrafted for answer in answers} == {None}
    structured = [
        answer.sequence.stats
        for answer in answers
        if answer.sequence.grammar is not None
    ]
    assert sum(stats.drafted for stats in structured) > 0
    assert sum(stats.accepted for stats in structured) > 0


@pytest.mark.parametrize(("name", "turn"), grid(COVERED, METHODS_THAT_DRAFT, range(3)))
def test_text_is_that_of_plain_decoding(name, turn):
    loop = engine(loaded(), drafter(name, DTYPE), 5, slots=6, chunk=16)
    got = finish(loop, requests(turn))
    assert [answer.said for answer in got] == [answer.said for answer in wanted(turn)]
    assert loop.failed is None
    check_drafted(got)


@pytest.mark.parametrize(
    "rule",
    [
        pytest.param(r, marks=() if r == "traversal" else pytest.mark.slow)
        for r in RULES
        if r != "match"
    ],
)
def test_every_rule_gives_greedy_text(rule):
    asked = [
        Case(
            prompts()[at % 5],
            SamplingParams(**({"max_tokens": 48} | form | {"temperature": 0.0})),
        )
        for at, form in enumerate(FORMS)
    ]
    loop = engine(loaded(), drafter("lm", DTYPE), 6, rule=rule)
    got = finish(loop, asked)
    assert [answer.said for answer in got] == [
        answer.said for answer in plain(loaded(), asked)
    ]
    check_drafted(got)


@pytest.mark.parametrize(
    "rule",
    [
        pytest.param(r, marks=() if r == "traversal" else pytest.mark.slow)
        for r in RULES
    ],
)
@pytest.mark.parametrize(
    "method", ["lm", pytest.param("suffix", marks=pytest.mark.slow)]
)
def test_tokens_have_the_masked_distribution(rule, method):
    """In the order of how much the draft model overrates them, as in test_distribution.py; both
    sides under the grammar.
    """
    words = SamplingParams(regex="([a-z ]{1,5}, ){12}", max_tokens=24).regex
    asked = [
        Case(
            prompts()[seed % 5],
            SamplingParams(temperature=1.0, seed=seed, max_tokens=24, regex=words),
        )
        for seed in range(16)
    ]
    answers = finish(
        engine(loaded(), drafter(method, DTYPE), 6, rule=rule, slots=4), asked
    )
    check_drafted(answers)
    places, spare = [], torch.Generator().manual_seed(1)
    for request, answer in zip(asked, answers, strict=True):
        sequence = answer.sequence
        assert re.fullmatch(r"([a-z ]{1,5}, )*([a-z ]{0,5}(, ?)?)?", answer.text)
        raw = [
            distribution(model, sequence.tokens) for model in (loaded(), draft(DTYPE))
        ]
        follows = grammars().answer(
            grammars().compiled(request.params), request.params, sequence.prompt
        )
        for place in range(sequence.prompt, len(sequence.tokens)):
            before = Request(
                0,
                sequence.tokens[:place],
                sequence.prompt,
                request.params,
                0,
                grammar=follows,
            )
            p, q = (
                weights(logits[place - 1 : place], before, [[]])[0].double().softmax(-1)
                for logits in raw
            )
            token = sequence.tokens[place]
            ratio = torch.where(p > 0, q / p, 0.0)
            over = (ratio > ratio[token]).double() @ p
            tied = (ratio == ratio[token]).double() @ p
            places.append(float(over + tied * torch.rand((), generator=spare)))
    assert kstest(places, "uniform").pvalue > 1e-3


def valid(form: dict, text: str) -> bool:
    if "json_schema" in form:
        return jsonschema_rs.is_valid(form["json_schema"], json.loads(text))
    if "json_object" in form:
        return isinstance(json.loads(text), dict)
    return (
        re.fullmatch(
            PHONE if "regex" in form else r"\d{1,3}( \+ \d{1,3})* = \d{1,3}", text
        )
        is not None
    )


def test_complete_answers_are_valid_and_end_with_stop():
    ended = 0
    for turn in range(3):
        for form, answer in zip(FORMS, wanted(turn), strict=True):
            if form and answer.sequence.finish_reason == "stop":
                ended += 1
                assert valid(form, answer.text), answer.text
    assert ended >= 6


@pytest.mark.sample(3)
@pytest.mark.parametrize(
    "form",
    [form for form in FORMS if form and "json_object" not in form],  # one token
    ids=str,
)
def test_cut_answer_begins_the_whole_one(form):
    (whole,) = plain(
        target(),
        [Case(prompts()[0], SamplingParams(**({"seed": 5, "max_tokens": 60} | form)))],
    )
    lengths = range(1, min(len(whole.tokens), 16))
    assert len(lengths) > 8
    asked = [
        Case(prompts()[0], SamplingParams(**({"seed": 5, "max_tokens": length} | form)))
        for length in lengths
    ]
    got = finish(engine(loaded(), drafter("lm", DTYPE), 6), asked)
    check_drafted(got)
    for length, answer in zip(lengths, got, strict=True):
        assert answer.tokens == whole.tokens[:length]
        assert whole.text.startswith(answer.text.rstrip("\ufffd"))
        assert answer.sequence.finish_reason == "length"


def test_text_ends_without_an_end_of_text_token():
    for ends in ({"ignore_eos": True}, {}):
        asked = [
            Case(
                prompts()[1],
                SamplingParams(
                    regex="(yes|no), [ab]{3}", max_tokens=30, seed=1, **ends
                ),
            )
        ]
        for loop in (engine(loaded()), engine(loaded(), drafter("lm", DTYPE), 5)):
            (answer,) = finish(loop, asked)
            assert re.fullmatch("(yes|no), [ab]{3}", answer.text)
            assert answer.sequence.finish_reason == "stop"
            assert not loaded().eos & set(answer.tokens)
    open_end = Case(
        prompts()[1],
        SamplingParams(regex="[ab]+", max_tokens=30, seed=1, ignore_eos=True),
    )
    (answer,) = finish(engine(loaded(), drafter("lm", DTYPE), 5), [open_end])
    assert (len(answer.tokens), answer.sequence.finish_reason) == (30, "length")
    assert re.fullmatch("[ab]+", answer.text)


def test_open_end_is_left_to_the_model():
    biased = SamplingParams(
        regex="[ab]+", max_tokens=30, seed=1, temperature=0, logit_bias={0: 100.0}
    )
    for loop in (engine(loaded()), engine(loaded(), drafter("lm", DTYPE), 5)):
        (answer,) = finish(loop, [Case(prompts()[1], biased)])
        assert re.fullmatch("[ab]+", answer.text)
        assert answer.tokens[-1] in loaded().eos
        assert answer.sequence.finish_reason == "stop"


@pytest.mark.parametrize(
    "grammar", ['root ::= "a" root', 'root ::= root "b" | "a" root "b" | "c"']
)
def test_recursive_grammars_run_to_the_longest_length(grammar):
    asked = [
        Case(
            prompts()[1],
            SamplingParams(grammar=grammar, max_tokens=24, seed=1, ignore_eos=True),
        )
    ]
    want = plain(loaded(), asked)
    got = finish(engine(loaded(), drafter("suffix", DTYPE), 5), asked)
    assert [one.said for one in got] == [one.said for one in want]
    assert got[0].sequence.stats.accepted > 0


def test_forbidden_words_that_leave_no_token_end_only_that_request():
    from foreword.errors import InvalidRequest

    every = tuple((token,) for token in range(loaded().vocab))
    stuck = Case(
        prompts()[0], SamplingParams(regex="abc", max_tokens=9, bad_word_ids=every)
    )
    with pytest.raises(InvalidRequest, match=r"is forbidden .* bad_word_ids or regex"):
        finish(engine(loaded(), drafter("lm", DTYPE), 3), [stuck])


def test_each_answer_to_a_prompt_follows_the_form():
    from foreword import LLM

    llm = LLM(nodes=4)
    params = SamplingParams(
        json_schema=PERSON, n=3, seed=7, max_tokens=60, temperature=1.0
    )
    several = llm.generate("A person:", params)
    assert [one.text for one in several] == [
        llm.generate(
            "A person:",
            SamplingParams(
                json_schema=PERSON, seed=seed_of(7, n), max_tokens=60, method="none"
            ),
        )[0].text
        for n in range(3)
    ]
    assert len({one.text for one in several}) == 3
    for one in several:
        assert one.stats.accepted > 0
        assert one.finish_reason == "length" or jsonschema_rs.is_valid(
            PERSON, json.loads(one.text)
        )
