"""The formulas give the numbers that the papers print, and agree with each other."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from foreword_lab.doctor import formulas

FREE = formulas.PassCost(token=0.0)
TABLE_1 = (
    (0.6, 2, 1.96),
    (0.7, 3, 2.53),
    (0.8, 2, 2.44),
    (0.8, 5, 3.69),
    (0.9, 2, 2.71),
    (0.9, 10, 6.86),
)
"""Leviathan et al. 2023 (arXiv 2211.17192), table 1: α, γ, speed where c = 0."""
TABLE_4 = (
    ("EnDe small, 0", 7, 0.75, 0.02, 3.2, 3.4),
    ("EnDe base, 0", 7, 0.80, 0.04, 3.3, 2.8),
    ("EnDe large, 0", 7, 0.82, 0.11, 2.5, 1.7),
    ("EnDe small, 1", 7, 0.62, 0.02, 2.3, 2.6),
    ("EnDe base, 1", 5, 0.68, 0.04, 2.4, 2.4),
    ("EnDe large, 1", 3, 0.71, 0.11, 2.0, 1.4),
    ("CNNDM small, 0", 5, 0.65, 0.02, 2.4, 3.1),
    ("CNNDM base, 0", 5, 0.73, 0.04, 2.6, 3.0),
    ("CNNDM large, 0", 3, 0.74, 0.11, 2.0, 2.2),
    ("CNNDM small, 1", 5, 0.53, 0.02, 1.9, 2.3),
    ("CNNDM base, 1", 3, 0.55, 0.04, 1.8, 2.2),
    ("CNNDM large, 1", 3, 0.56, 0.11, 1.6, 1.7),
)
"""The same, tables 2 and 4: task, draft, γ, α, c, expected and measured speed."""
BIGRAM = (0.2, 3, 1.25)
"""The same paper, section 3.6: α and γ of a bigram model with c = 0, and the speed."""
STEP_MS, DRAFT_MS, K = 14.1, 1.8, 4
"""Chen et al. 2023 (2302.01318), section 5: milliseconds a token, draft length."""
CHEN = {"XSum, nucleus": 1.92, "XSum, greedy": 2.01, "HumanEval, nucleus": 2.46}
"""The same paper, table 1: speed over plain decoding."""


def theorem(alpha: float, gamma: int, cost: float) -> float:
    tokens = formulas.tokens_by_depth([alpha] * gamma)
    return formulas.speed_up(tokens, gamma, formulas.PassCost(token=cost))


@pytest.mark.parametrize(("alpha", "gamma", "speed"), TABLE_1)
def test_table_1_is_reproduced(alpha, gamma, speed):
    assert round(theorem(alpha, gamma, 0.0), 2) == speed


@pytest.mark.parametrize(
    ("gamma", "alpha", "cost", "expected"), [row[1:5] for row in TABLE_4]
)
def test_table_4_is_reproduced(gamma, alpha, cost, expected):
    """To the digits printed: α and c are rounded to two, the speed to one."""
    low = theorem(alpha - 0.005, gamma, cost + 0.005)
    high = theorem(alpha + 0.005, gamma, cost - 0.005)
    assert low - 0.05 <= expected <= high + 0.05


@pytest.mark.parametrize(
    ("gamma", "alpha", "cost", "measured"), [(*row[1:4], row[5]) for row in TABLE_4]
)
def test_table_2_is_within_half_of_theorem_3_8(gamma, alpha, cost, measured):
    """The paper blames its implementation, and dependent acceptance."""
    assert abs(math.log(measured / theorem(alpha, gamma, cost))) < math.log(1.5)


def test_bigram_model_is_reproduced():
    alpha, gamma, speed = BIGRAM
    assert round(theorem(alpha, gamma, 0.0), 2) == speed


@pytest.mark.parametrize("speed", CHEN.values())
def test_speeds_of_chen_are_within_the_bounds_of_theorem_3_8(speed):
    cost = DRAFT_MS / STEP_MS
    assert theorem(0.0, K, cost) < 1 < speed < theorem(1.0, K, cost)


def test_code_has_the_highest_acceptance_that_chen_can_have_had():
    """The paper finds code easier to draft than summaries, in its section 5."""
    implied = {task: acceptance_of(speed) for task, speed in CHEN.items()}
    assert max(implied, key=implied.__getitem__) == "HumanEval, nucleus"
    assert all(0.6 < alpha < 0.9 for alpha in implied.values())


def acceptance_of(speed: float) -> float:
    """The acceptance at which theorem 3.8 gives a speed of Chen et al."""
    cost = DRAFT_MS / STEP_MS
    alphas = [step / 1000 for step in range(1001)]
    return min(alphas, key=lambda alpha: abs(theorem(alpha, K, cost) - speed))


@given(st.floats(0, 0.99), st.integers(0, 64))
def test_equal_shares_give_equation_1(alpha, gamma):
    closed = (1 - alpha ** (gamma + 1)) / (1 - alpha)
    assert formulas.tokens_by_depth([alpha] * gamma) == pytest.approx(closed)


def test_tokens_take_the_share_of_each_depth():
    assert formulas.tokens_by_depth([0.5, 0.8]) == pytest.approx(1 + 0.5 + 0.5 * 0.8)


def test_measured_scoring_start_and_overhead_are_paid():
    cost = formulas.PassCost(
        token=0.1, start=0.2, overhead=0.5, scoring=(1.0, 1.1, 1.4)
    )
    assert cost(0) == pytest.approx(1.5)
    assert cost(2) == pytest.approx(0.2 + 0.2 + 1.4 + 0.5)
    assert formulas.speed_up(2.0, 2, cost) == pytest.approx(2.0 * 1.5 / 2.3)


def test_nothing_pays_if_drafting_costs_a_step():
    dear = formulas.PassCost(token=1.0, start=0.5)
    assert formulas.best_gamma(speeds(0.9, dear)) == 0


def test_best_draft_is_longest_if_it_is_free():
    assert formulas.best_gamma(speeds(0.8, FREE)) == 64


def speeds(alpha: float, cost: formulas.PassCost) -> list[float]:
    """Speeds of 0 to 64 draft tokens."""
    tokens = [formulas.tokens_by_depth([alpha] * gamma) for gamma in range(65)]
    return [formulas.speed_up(one, gamma, cost) for gamma, one in enumerate(tokens)]
