"""The formulas give the numbers that the papers print, and agree with each other."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from foreword_lab.doctor import formulas

FREE = formulas.PassCost(token=0.0)
SPEEDS = (
    (0.2, 3, 1.25),
    (0.6, 2, 1.96),
    (0.7, 3, 2.53),
    (0.8, 2, 2.44),
    (0.8, 5, 3.69),
    (0.9, 2, 2.71),
    (0.9, 10, 6.86),
)
"""arXiv 2211.17192, section 3.6 and table 1: α, γ, speed where c = 0."""


@pytest.mark.parametrize(("alpha", "gamma", "speed"), SPEEDS)
def test_speeds_of_the_paper_are_reproduced(alpha, gamma, speed):
    tokens = formulas.tokens_by_depth([alpha] * gamma)
    assert round(formulas.speed_up(tokens, gamma, FREE), 2) == speed


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


def test_best_draft_is_longest_if_it_is_free_and_none_if_it_costs_a_step():
    assert formulas.best_gamma(speeds(0.8, FREE)) == 64
    assert formulas.best_gamma(speeds(0.9, formulas.PassCost(token=1.0))) == 0


def speeds(alpha: float, cost: formulas.PassCost) -> list[float]:
    tokens = [formulas.tokens_by_depth([alpha] * gamma) for gamma in range(65)]
    return [formulas.speed_up(one, gamma, cost) for gamma, one in enumerate(tokens)]
