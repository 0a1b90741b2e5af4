"""Answers that follow a form are the text of plain decoding, and valid."""

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
from grids import grid, slow_case
from running import (
    Answer,
    Case,
    distribution,
    draft,
    drafter,
    engine,
    finish,
    grammars,
    outputs,
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
PHONE = r"[0-9]{3}-[0-9]{4} (home|wörk)"
SUMS = 'root ::= number (" + " number)* " = " number\nnumber ::= [0-9]{1,3}'
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
"""Methods of `make test`, each with another pairing of forms and temperatures."""


def loaded() -> Model:
    return target(DTYPE)


def requests(turn: int) -> list[Case]:
    """Every form, and none, at a temperature that changes from turn to turn."""
    asked = []
    for at, form in enumerate(FORMS):
        heat = HEATS[(at + turn) % 3]
        options = dict(temperature=heat, seed=10 * turn + at, max_tokens=56)
        asked.append(Case(prompts()[at % 5], SamplingParams(**options | form)))
    return asked


@cache
def wanted(turn: int) -> list[Answer]:
    return plain(loaded(), requests(turn))


def check_drafted(answers: list[Answer]) -> None:
    """A text for which nothing was drafted proves nothing."""
    assert {answer.request.undrafted for answer in answers} == {None}
    sequences = [answer.request for answer in answers]
    stats = [one.stats for one in sequences if one.grammar is not None]
    assert sum(one.drafted for one in stats) > 0
    assert sum(one.accepted for one in stats) > 0


@pytest.mark.sample(3)
@pytest.mark.parametrize(("name", "turn"), grid(COVERED, METHODS_THAT_DRAFT, range(3)))
def test_text_is_that_of_plain_decoding(name, turn):
    loop = engine(loaded(), drafter(name, DTYPE), 5, slots=6, chunk=16)
    got = finish(loop, requests(turn))
    assert outputs(got) == outputs(wanted(turn))
    assert loop.failed is None
    check_drafted(got)


SLOWLY = [
    pytest.param(rule, marks=() if rule == "traversal" else pytest.mark.slow)
    for rule in RULES
]


@pytest.mark.slow
@pytest.mark.parametrize("rule", SLOWLY)
def test_every_rule_gives_greedy_text(rule):
    params = [
        SamplingParams(**dict(max_tokens=48) | form | dict(temperature=0.0))
        for form in FORMS
    ]
    asked = [Case(prompts()[at % 5], one) for at, one in enumerate(params)]
    loop = engine(loaded(), drafter("lm", DTYPE), 6, rule=rule)
    got = finish(loop, asked)
    assert outputs(got) == outputs(plain(loaded(), asked))
    check_drafted(got)


@pytest.mark.parametrize("rule", SLOWLY)
@pytest.mark.parametrize("method", ["lm", slow_case("suffix")])
def test_tokens_have_the_masked_distribution(rule, method):
    """Ordered by how much the draft model overrates them, by the grammar."""
    words = SamplingParams(regex="([a-z ]{1,5}, ){12}", max_tokens=24).regex
    options = dict(temperature=1.0, max_tokens=24, regex=words)
    params = [SamplingParams(seed=seed, **options) for seed in range(16)]
    asked = [Case(prompts()[seed % 5], one) for seed, one in enumerate(params)]
    loop = engine(loaded(), drafter(method, DTYPE), 6, rule=rule, slots=4)
    answers = finish(loop, asked)
    check_drafted(answers)
    places, spare = [], torch.Generator().manual_seed(1)
    for request, answer in zip(asked, answers, strict=True):
        sequence = answer.request
        assert re.fullmatch(r"([a-z ]{1,5}, )*([a-z ]{0,5}(, ?)?)?", answer.text)
        models = (loaded(), draft(DTYPE))
        raw = [distribution(model, sequence.tokens) for model in models]
        params, start = request.params, sequence.prompt
        follows = grammars().answer(grammars().compiled(params), params, start)
        for place in range(start, len(sequence.tokens)):
            text = sequence.tokens[:place]
            before = Request(0, text, start, params, 0, grammar=follows)
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
    sums = r"\d{1,3}( \+ \d{1,3})* = \d{1,3}"
    return re.fullmatch(PHONE if "regex" in form else sums, text) is not None


def test_complete_answers_are_valid_and_end_with_stop():
    ended = 0
    for turn in range(3):
        for form, answer in zip(FORMS, wanted(turn), strict=True):
            if form and answer.request.finish_reason == "stop":
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
    def case(length: int) -> Case:
        options = dict(seed=5, max_tokens=length) | form
        return Case(prompts()[0], SamplingParams(**options))

    (whole,) = plain(target(), [case(60)])
    lengths = range(1, min(len(whole.tokens), 16))
    assert len(lengths) > 8
    asked = [case(length) for length in lengths]
    got = finish(engine(loaded(), drafter("lm", DTYPE), 6), asked)
    check_drafted(got)
    for length, answer in zip(lengths, got, strict=True):
        assert answer.tokens == whole.tokens[:length]
        assert whole.text.startswith(answer.text.rstrip("\ufffd"))
        assert answer.request.finish_reason == "length"


def test_text_ends_without_an_end_of_text_token():
    for ends in ({"ignore_eos": True}, {}):
        options = dict(regex="(yes|no), [ab]{3}", max_tokens=30, seed=1)
        asked = [Case(prompts()[1], SamplingParams(**options, **ends))]
        for loop in (engine(loaded()), engine(loaded(), drafter("lm", DTYPE), 5)):
            (answer,) = finish(loop, asked)
            assert re.fullmatch("(yes|no), [ab]{3}", answer.text)
            assert answer.request.finish_reason == "stop"
            assert not loaded().eos & set(answer.tokens)
    params = SamplingParams(regex="[ab]+", max_tokens=30, seed=1, ignore_eos=True)
    open_end = Case(prompts()[1], params)
    (answer,) = finish(engine(loaded(), drafter("lm", DTYPE), 5), [open_end])
    assert (len(answer.tokens), answer.request.finish_reason) == (30, "length")
    assert re.fullmatch("[ab]+", answer.text)


def test_open_end_is_left_to_the_model():
    options = dict(temperature=0, logit_bias={0: 100.0})
    biased = SamplingParams(regex="[ab]+", max_tokens=30, seed=1, **options)
    for loop in (engine(loaded()), engine(loaded(), drafter("lm", DTYPE), 5)):
        (answer,) = finish(loop, [Case(prompts()[1], biased)])
        assert re.fullmatch("[ab]+", answer.text)
        assert answer.tokens[-1] in loaded().eos
        assert answer.request.finish_reason == "stop"


@pytest.mark.parametrize(
    "grammar", ['root ::= "a" root', 'root ::= root "b" | "a" root "b" | "c"']
)
def test_recursive_grammars_run_to_the_longest_length(grammar):
    options = dict(max_tokens=24, seed=1, ignore_eos=True)
    asked = [Case(prompts()[1], SamplingParams(grammar=grammar, **options))]
    want = plain(loaded(), asked)
    got = finish(engine(loaded(), drafter("suffix", DTYPE), 5), asked)
    assert outputs(got) == outputs(want)
    assert got[0].request.stats.accepted > 0


def test_forbidden_words_that_leave_no_token_end_only_that_request():
    from foreword.errors import InvalidRequest

    every = tuple((token,) for token in range(loaded().vocab))
    params = SamplingParams(regex="abc", max_tokens=9, bad_word_ids=every)
    stuck = Case(prompts()[0], params)
    with pytest.raises(InvalidRequest, match=r"is forbidden .* bad_word_ids or regex"):
        finish(engine(loaded(), drafter("lm", DTYPE), 3), [stuck])


def test_each_answer_to_a_prompt_follows_the_form():
    from foreword import LLM

    llm = LLM(nodes=4)
    shared = dict(json_schema=PERSON, max_tokens=60)
    params = SamplingParams(n=3, seed=7, temperature=1.0, **shared)
    several = llm.generate("A person:", params)
    assert len({one.text for one in several}) == 3
    for number, one in enumerate(several):
        own = SamplingParams(seed=seed_of(7, number), method="none", **shared)
        assert one.text == llm.generate("A person:", own)[0].text
        assert one.stats.accepted > 0
        assert one.finish_reason == "length" or valid(shared, one.text)
