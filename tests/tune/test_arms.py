"""The choice of a method: predicted on answers that do not depend on it, then timed."""

import json
import re
from dataclasses import replace

import pytest

from foreword import LLM, Recording
from foreword.engine.choosing import Chooser
from foreword.errors import InvalidRequest
from foreword.hindsight.whatif import what_if
from foreword.prompts import load
from foreword_lab.bench.run import render, spread
from foreword_lab.tune.arms import Search, _best, choose, speeds
from foreword_lab.tune.chosen import Arm, Chosen, Confirmation, Limits, Prediction
from foreword_lab.tune.chosen_page import page
from foreword_lab.tune.timed import RoundPrices, Spent, TimedArm, params_of, typical
from foreword_train.report.interval import Interval

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
    lm = next(one for one in found.predictions if one.arm == Arm("lm", 4))
    assert lm.tokens_per_pass > 1
    assert 0 < lm.accepted <= 1
    assert 0 < lm.drafting < 1
    assert len(lm.by_depth) == lm.arm.nodes
    assert 1 >= lm.by_depth[0] >= lm.by_depth[-1] > 0
    # a path of n accepted draft tokens and the bonus token, unless the answer ends
    assert 1 + sum(lm.by_depth) >= lm.tokens_per_pass > 0.8 * (1 + sum(lm.by_depth))
    now, limits = lm.over_plain.mid, lm.limits
    assert min(limits.free_drafting, limits.free_rows, limits.all_accepted) >= now
    assert limits.free_drafting == pytest.approx(now / (1 - lm.drafting))
    assert found.costs[1] > 0
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


@pytest.mark.slow
def test_what_was_measured_is_where_auto_begins(llm, prompts):
    search = Search(methods=("ngram", "lm"), **QUICK)
    found = speeds(choose(llm, prompts, search))
    assert set(found) == {"ngram", "lm"}
    with LLM(method="auto(lm, ngram)") as other:
        chooser = other.engine.default
        assert isinstance(chooser, Chooser)
        choice = chooser._choices.of(((True, True), 1))
        assert all(price.known for price in choice.prices)
        faster = choice.speed([choice.begin()], 0)
        assert faster == pytest.approx(found["lm"], rel=0.5)
        unmeasured = chooser._choices.of(((False, True), 1))
        assert not any(price.known for price in unmeasured.prices)


@pytest.mark.slow
def test_rules_are_predicted_and_timed_where_they_are_named(llm, prompts):
    search = Search(
        methods=("lm", "retrieval"), rules=("match", "block"), temperature=0.7, **QUICK
    )
    found = choose(llm, prompts, search)
    arms = {(one.arm.method, one.arm.rule) for one in found.predictions}
    assert arms == {("none", "match"), ("lm", "match"), ("lm", "block")}
    assert {*found.left_out} == {"retrieval", "retrieval, block"}
    timed = {one.arm.rule for one in found.confirmations if one.arm.nodes}
    assert timed == {"match", "block"}
    assert Arm("lm", 4, "block").name == "lm under block"
    assert Arm("lm", 4).name == "lm"


def test_an_answer_costs_its_rounds_at_the_price_of_real_ones(llm, prompts):
    arm = Arm("ngram", 4)
    prices = RoundPrices(llm.session, Search(**QUICK))
    spent = Spent(16, {True: 3, False: 7}, {True: 3.0, False: 7.0})
    # nothing was timed: what was predicted, over a plain round of half a second
    assert prices.units(arm, spent, 0.5) == 20.0
    assert prices.drafting(arm) is None
    lm = Arm("lm", 4)
    prices.time(lm, prompts[0], 0)
    once = prices.units(lm, replace(spent, rounds={True: 1}), 0.5)
    assert once >= 1
    assert prices.units(lm, spent, 0.5) == pytest.approx(3 * once + 7.0 / 0.5)
    free = Spent(16, {True: 16}, {True: 0.0})
    assert prices.units(lm, free, 0.5) >= 16
    assert 0 < (prices.drafting(lm) or 0) < 1


def test_the_slowest_rounds_do_not_set_the_price():
    quick, slow = [1.0] * 9, [3.0] * 9
    assert typical([*quick, *slow]) == pytest.approx(33 / 17)  # both kinds happen
    assert typical([*quick, 50.0]) == 1.0
    assert typical([2.0]) == 2.0


def test_real_rounds_are_those_that_were_predicted(llm, prompts):
    search = Search(**QUICK)
    arm = Arm("lm", 4)
    first = TimedArm(llm.session, arm, search).rounds(prompts[0], 0, 3)
    whole = TimedArm(llm.session, arm, search).rounds(prompts[0], 0)
    assert len(first) == 3 < len(whole)
    assert [one.tokens for one in first] == [one.tokens for one in whole[:3]]
    params = params_of(search, 0, "none")
    recording = Recording.of(llm, params, llm.generate([prompts[0]], params)[0])
    outcomes = what_if(llm, recording, ["lm"], (4,)).outcomes
    lm = next(one for one in outcomes if one.method == "lm")
    assert lm.passes == len(whole)
    assert Spent.of(lm).rounds[True] == sum(bool(one.draft) for one in whole)
    assert sum(Spent.of(lm).seconds.values()) == pytest.approx(lm.seconds)


def test_page_shows_what_was_found_and_loads_nothing():
    arm, slow = Arm("lm", 4), Arm("<b>", 2)
    limits = Limits(2.5, 2.2, 3.0)
    speed = Interval(1.8, 2.0, 2.2)
    chosen = Chosen(
        arm,
        5,
        0.0,
        (
            Prediction(arm, speed, 3.0, 0.5, 0.2, (0.9, 0.6, 0.3, 0.2), limits),
            Prediction(slow, Interval(1.0, 1.1, 1.2), 1.2, 0.1, 0.1, (0.2, 0), limits),
        ),
        (Confirmation(arm, 2.0, speed),),
        {"eagle": "it needs a head"},
        {1: 0.01, 8: 0.02},
        ("lm is 2.00 times as fast.",),
    )
    text = page(chosen, "a <model>")
    assert "a &lt;model&gt;, 5 prompts" in text
    assert "<b>" not in text
    assert "eagle (it needs a head)" in text
    assert "src=" not in text
    lines = re.findall(r'<polyline points="([^"]+)"', text)
    # acceptance of two methods, then the cost of a forward
    assert [len(line.split()) for line in lines] == [5, 3, 2]
    heights = [float(point.partition(",")[2]) for point in lines[0].split()]
    assert heights == sorted(heights)
    assert text.count("<td>2.50</td>") == 2


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
