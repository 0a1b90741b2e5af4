"""The choice of a method: predicted on answers that do not depend on it, then timed."""

from __future__ import annotations

import json

import pytest

from foreword import LLM
from foreword.bench.prompts import load
from foreword.bench.run import render, spread
from foreword.bench.stats import Interval
from foreword.errors import InvalidRequest
from foreword.tune.arms import Arm, Confirmation, Search, _best, choose

QUICK = {"tokens": 16, "minutes": 0.02}


@pytest.fixture(scope="module")
def llm() -> LLM:
    return LLM(nodes=4)


@pytest.fixture(scope="module")
def prompts(llm: LLM) -> list[tuple[int, ...]]:
    return [render(llm.tokenizer, one) for one in spread(load("in-domain"), 5)]


def test_choices_are_predicted_and_timed(llm, prompts):
    search = Search(methods=("ngram", "lm", "retrieval"), **QUICK)
    told: list[str] = []
    found = choose(llm, prompts, search, told.append)
    assert found.prompts >= 4
    arms = {one.arm for one in found.predictions}
    assert Arm("none", 0) in arms
    assert {one.method for one in arms} <= {"none", "ngram", "lm"}
    assert "datastore" in found.left_out["retrieval"]
    plain = next(one for one in found.predictions if one.arm.method == "none")
    assert (plain.over_plain.mid, plain.tokens_per_pass) == (1.0, 1.0)
    lm = next(one for one in found.predictions if one.arm.method == "lm")
    assert lm.tokens_per_pass > 1
    assert 0 < lm.accepted <= 1
    assert 0 < lm.drafting < 1
    speeds = [one.over_plain.mid for one in found.predictions]
    assert speeds == sorted(speeds, reverse=True)
    timed = {one.arm for one in found.confirmations}
    assert Arm("none", 0) in timed
    # a constant number of each method, and the adaptive budget of the best
    assert {one.method for one in timed if one.nodes} == {"ngram", "lm"}
    assert [one.method for one in timed if one.nodes is None]
    assert found.best in timed
    assert found.why
    assert told
    assert json.loads(json.dumps(found.as_json()))["best"]


def test_the_adaptive_budget_is_taken_where_it_is_hardly_slower():
    def timed(method: str, nodes: int | None, speed: float) -> Confirmation:
        return Confirmation(Arm(method, nodes), speed, Interval(speed, speed, speed))

    near = [timed("lm", 8, 2.0), timed("lm", None, 1.98), timed("none", 0, 1.0)]
    assert _best(near) == Arm("lm", None)
    far = [timed("lm", 8, 2.0), timed("lm", None, 1.7), timed("none", 0, 1.0)]
    assert _best(far) == Arm("lm", 8)
    assert far[0].error == 0.0


def test_without_prompts_nothing_can_be_chosen(llm):
    with pytest.raises(InvalidRequest, match="there are no prompts"):
        choose(llm, [], Search())
