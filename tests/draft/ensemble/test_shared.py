"""Names that clients write, and drafters in memory: one spelling, one load."""

import gc
import weakref
from functools import cache
from threading import Event
from typing import Any

import pytest

import starter
from foreword import LLM, InvalidRequest, SamplingParams
from foreword.draft import METHODS, method, spelled
from foreword.draft.lm import LanguageModelDrafter
from foreword.engine.speculator_cache import UNUSED
from foreword.shared import Shared
from running import DTYPE

PARAMS = dict(temperature=0.0, max_tokens=8, nodes=3)


@cache
def llm() -> LLM:
    return LLM(starter.target(), draft=starter.draft(), dtype=DTYPE, nodes=3)


def drafter(name: str):
    return llm().session.speculator(SamplingParams(method=name)).drafter


@pytest.mark.parametrize(
    ("name", "limit"),
    [
        ("cascade(" * 900 + "lm" + ")" * 900, "characters, the limit is 256"),
        ("cascade(" + "lm," * 5000 + "suffix)", "characters, the limit is 256"),
        ("cascade(" * 5 + "lm,suffix" + ")" * 5, "nested 5 deep, the limit is 4"),
        ("cascade(" + ",".join("abcdefghijklmnopq") + ")", "members, the limit is 16"),
    ],
)
def test_names_are_bounded_before_they_are_read(name, limit):
    for read in (method, lambda given: SamplingParams(method=given)):
        with pytest.raises(InvalidRequest, match=limit) as refused:
            read(name)
        assert len(str(refused.value)) < 200


def test_fifteen_methods_fit_in_one_name():
    assert (
        spelled(f"cascade({','.join(sorted(METHODS, key=len)[-15:])})").count(",") == 14
    )


def test_spellings_of_a_method_are_one():
    spellings = (
        "cascade(suffix, lm)",
        "cascade(suffix,lm)",
        " cascade ( suffix ,lm )",
        "cascade(suffix,   lm)\n",
    )
    answers = [
        llm().generate("One day", SamplingParams(method=name, **PARAMS))[0]
        for name in spellings
    ]
    assert {answer.method for answer in answers} == {"cascade(suffix, lm)"}
    assert len({id(drafter(name)) for name in spellings}) == 1
    assert (
        LLM(starter.target(), draft={" lm ": starter.draft()}, method=" lm ").method
        == "lm"
    )


def test_methods_share_their_members():
    """A draft model is in memory once for all methods, with the same text."""
    names = (
        "lm",
        "cascade(suffix, lm)",
        "cascade(lm, ngram)",
        "cascade(cascade(suffix, lm), ngram)",
    )
    params = [SamplingParams(method=name, **PARAMS) for name in (*names, "none")]
    together = llm().generate(["One day"] * 5, params)
    assert len({answer.text for answer in together}) == 1
    alone, first, second, nested = map(drafter, names)
    assert alone is llm().engine.drafter
    assert (
        first.members[1] is second.members[0] is nested.members[0].members[1] is alone
    )


LATER: dict[str, Any] = dict(
    dtype=DTYPE, nodes=3, method="ngram", draft={"ngram": None, "lm": starter.draft()}
)
"""A draft model that is loaded when a request first needs it."""


def test_drafters_that_no_request_uses_are_freed():
    llm = LLM(starter.target(), **LATER)
    running = llm.stream(
        "One day",
        SamplingParams(method="cascade(ngram, lm)", max_tokens=64, ignore_eos=True),
    )
    next(running)
    used = weakref.ref(
        llm.session.speculator(SamplingParams(method="cascade(ngram, lm)")).drafter
    )
    unused = weakref.ref(
        llm.session.speculator(SamplingParams(method="cascade(lm, ngram)")).drafter
    )
    for number in range(UNUSED):
        llm.session.speculator(SamplingParams(method="suffix", nodes=number))
    gc.collect()
    assert (used() is None, unused() is None) == (False, True)
    assert (
        llm.session.speculator(SamplingParams(method="cascade(ngram, lm)")).drafter
        is used()
    ), "found again, not loaded again"
    running.close()
    for number in range(UNUSED):
        llm.session.speculator(SamplingParams(method="suffix", nodes=number))
    gc.collect()
    assert used() is None


def test_objects_in_use_are_found_after_others_took_their_place():
    class Thing:
        pass

    shared = Shared(1)
    first = shared.get("first", Thing)
    second = weakref.ref(shared.get("second", Thing))
    assert shared.get("first", Thing) is first
    gc.collect()
    assert (second(), len(shared)) == (None, 1)


def test_rounds_go_on_while_a_drafter_is_loaded(monkeypatch):
    """The load waits here for a round of another request, which it would stop."""
    llm = LLM(starter.target(), **LATER)
    other = llm.stream(
        "One day", SamplingParams(max_tokens=64, ignore_eos=True, seed=1)
    )
    started, round_done = Event(), Event()
    load = LanguageModelDrafter.load

    def waiting(*args):
        started.set()
        assert round_done.wait(60)
        return load(*args)

    monkeypatch.setattr(LanguageModelDrafter, "load", waiting)
    loading = llm.session.load(SamplingParams(method="cascade(ngram, lm)"))
    assert started.wait(60)
    assert next(other).tokens
    assert not loading.done()
    round_done.set()
    loading.result(60)
