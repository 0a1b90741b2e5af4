"""From made figures, each cause has the cost that the formulas predict."""

from dataclasses import replace

import pytest

import starter
from foreword import LLM
from foreword_lab.doctor import acceptance, costs
from foreword_lab.doctor.figures import Figures
from foreword_lab.doctor.finding import Finding, ranked
from foreword_lab.doctor.formulas import PassCost, tokens_by_depth
from foreword_lab.doctor.measured import MeasuredPair

FREE = PassCost(token=0.0, scoring=(1.0,) * 9)


@pytest.fixture(scope="module")
def llm():
    return LLM(str(starter.target()), method="ngram")


def made(alpha: float, cost: PassCost = FREE, **changes) -> Figures:
    plain = Figures(
        first=alpha,
        tried=500,
        by_depth=(alpha,) * 8,
        drafting=1.0,
        by_answer=(2.0,) * 6,
        cost=cost,
        step=0.01,
    )
    return replace(plain, **changes)


@pytest.fixture
def pair(llm):
    def of(cold: Figures, hot: Figures | None = None) -> MeasuredPair:
        figures = {"0": cold, "1": hot or cold}
        return MeasuredPair(
            session=llm.session,
            draft=None,
            method="",
            prompts=(),
            tokens=1,
            figures=figures,
        )

    return of


def test_speed_follows_equation_1():
    assert made(0.8).best == pytest.approx(tokens_by_depth([0.8] * 8))
    half = made(0.8, drafting=0.5)
    assert half.best == pytest.approx((1 + tokens_by_depth([0.8] * 8)) / 2)
    assert made(0.5, PassCost(token=0.9)).nodes == 0
    assert made(0.5, PassCost(token=0.9)).best == 1


def test_free_drafting_is_what_a_dear_drafter_costs(pair):
    figures = made(0.8, replace(FREE, token=0.5))
    (found,) = costs.drafter(pair(figures))
    assert (found.level, found.name) == ("note", "dear drafter")
    assert found.speed == pytest.approx(tokens_by_depth([0.8] * 8))
    assert found.cost == pytest.approx(tokens_by_depth([0.8] * 8) / figures.best)
    assert "5.00 ms, 50% of a forward of the target (10.00 ms)" in found.evidence
    (loses,) = costs.drafter(pair(made(0.4, replace(FREE, token=0.6))))
    assert loses.level == "bad"
    (cheap,) = costs.drafter(pair(made(0.8)))
    assert (cheap.level, cheap.is_cause) == ("good", False)


def test_fixed_time_is_what_a_fast_target_costs(pair):
    (found,) = costs.fixed(pair(made(0.8, replace(FREE, start=1.0))))
    assert found.name == "fast target"
    assert found.cost == pytest.approx(2)
    assert "10.00 ms however short it is, 100% of a forward" in found.evidence
    assert costs.fixed(pair(made(0.8))) == []


def test_free_checking_is_what_dear_checking_costs(pair):
    table = tuple(1 + rows / 4 for rows in range(9))
    (found,) = costs.checking(pair(made(0.8, replace(FREE, scoring=table))))
    assert found.name == "dear checking"
    assert found.speed == pytest.approx(tokens_by_depth([0.8] * 8))
    assert "over 9 rows takes 3.00 times" in found.evidence
    (good,) = costs.checking(pair(made(0.8)))
    assert good.level == "good"


def test_temperature_costs_what_acceptance_falls(pair):
    (found,) = acceptance.temperature(pair(made(0.8), made(0.3)))
    assert found.cost == pytest.approx(
        tokens_by_depth([0.8] * 8) / tokens_by_depth([0.3] * 8)
    )
    assert "30% of the first draft tokens are accepted at temperature 1" in (
        found.evidence
    )
    assert acceptance.temperature(pair(made(0.8), made(0.75))) == []


def test_few_rounds_prove_no_fall_of_acceptance(pair):
    few = made(0.8, tried=5), made(0.5, tried=5)
    assert acceptance.temperature(pair(*few)) == []


def test_low_acceptance_costs_what_training_can_bring(pair):
    (found,) = acceptance.low(pair(made(0.2)))
    assert found.level == "note"
    assert found.speed == pytest.approx(tokens_by_depth([acceptance.TRAINED] * 8))
    (rare,) = acceptance.low(pair(made(0.05)))
    assert rare.level == "bad"
    assert acceptance.low(pair(made(0.0, tried=0))) == []


def test_causes_come_first_and_the_largest_loss_before_them():
    def one(name, level, cost=1.0):
        return Finding(level, name, "", cost=cost)

    mixed = (
        one("good", "good"),
        one("small", "note", 1.02),
        one("bad", "bad"),
        one("large", "note", 2.0),
        one("larger", "bad", 3.0),
    )
    names = [finding.name for finding in ranked(mixed)]
    assert names == ["larger", "large", "bad", "small", "good"]
