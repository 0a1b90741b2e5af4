"""How much is drafted where something is, and whether that takes no longer than plain
decoding. Costs are given, not measured.
"""

import math
from dataclasses import dataclass

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from foreword.budget import (
    BUDGETS,
    AdaptiveBudget,
    Costs,
    FixedBudget,
    RoundResult,
    policy,
)
from foreword.budget.estimates import BUDGET
from foreword.budget.heuristic import HeuristicBudget
from foreword.budget.stopping import ConfidenceBudget
from foreword.draft.base import chosen
from foreword.errors import InvalidRequest, UnknownMethod
from foreword.estimators import LinearCost
from foreword.types import Clock, Draft, DraftTree, Request, SamplingParams
from grids import slow_case
from policy import Policy

FLAT = {1: 1.0, 2: 1.0, 4: 1.0, 8: 1.0, 16: 1.0, 32: 1.0}
"""A forward over many rows costs what one costs."""


def request(id: int = 1, **options: float) -> Request:
    return Request(id, [1, 2, 3], 3, SamplingParams(**options), seed=0)


def test_fixed_is_fixed():
    assert {FixedBudget(3).nodes(request(), others) for others in range(3)} == {3}


def test_only_policies_that_need_costs_measure_them():
    measured = []

    def measure():
        measured.append(1)
        return FLAT

    for name, kind in BUDGETS.items():
        assert type(policy(name)(measure)) is kind
    assert type(policy()(measure)) is AdaptiveBudget
    assert len(measured) == 2
    assert policy(nodes=3)(measure).nodes(request(), 0) == 3
    own = ConfidenceBudget(0.5)
    assert policy(own)(measure) is own


def test_unknown_or_double_policy_is_refused():
    with pytest.raises(
        UnknownMethod, match=r"budget 'confidense': .* Did you mean 'confidence'\?"
    ):
        policy("confidense")
    with pytest.raises(InvalidRequest, match="cannot use both nodes=3 and budget"):
        policy("confidence", nodes=3)


def test_heuristic_goes_up_by_two_and_down_by_one():
    schedule, asked = HeuristicBudget(), []
    for share in (1.0, 1.0, 0.5, 0.0, 1.0):
        asked.append(schedule.nodes(request(), 0))
        schedule.learn(request(), outcome(asked[-1], int(asked[-1] * share)))
    assert asked == [5, 7, 9, 8, 7]
    assert schedule.nodes(request(2), 0) == 5, "each text has its own"
    for _ in range(20):
        schedule.learn(request(), outcome(schedule.nodes(request(), 0), 0))
    assert schedule.nodes(request(), 0) == 1
    schedule.learn(request(), outcome(0, 0))
    assert schedule.nodes(request(), 0) == 1, "nothing drafted, nothing lost"
    schedule.release(request())
    assert schedule.nodes(request(), 0) == 5


def outcome(drafted: int, accepted: int) -> RoundResult:
    return RoundResult(drafted, drafted, accepted)


def even(tokens: int) -> torch.Tensor:
    """Log-weights of so many equal tokens among twenty: the entropy is log(tokens)."""
    return torch.full((20,), -math.inf).index_fill_(0, torch.arange(tokens), 3.0)


def test_chain_ends_before_draft_token_that_is_too_uncertain():
    ends = ConfidenceBudget(0.4)
    for tokens in range(1, 10):
        # one of two has a probability of 0.5, one of three less than 0.4
        assert ends.stops(request(), 1, even(tokens)) == (tokens > 2)
    assert not ends.stops(request(), 0, even(9)), "one draft token is always made"
    assert ends.nodes(request(), 0) == 40


def test_budget_takes_nothing_after_its_name():
    with pytest.raises(InvalidRequest, match="nothing after its name"):
        policy("confidence:x")


def test_cost_of_each_draft_token_and_of_starting():
    making = LinearCost()
    for made in (4, 9, 2, 7, 5, 11, 3):
        making.learn(made, 0.25 + 0.03 * made)
    assert making.each == pytest.approx(0.03)
    assert making.start == pytest.approx(0.25)


def test_equal_rounds_split_their_cost_in_half():
    making = LinearCost()
    assert (making.each, making.start) == (0.0, 0.0)
    for _ in range(9):
        making.learn(5, 0.5)
    assert making.each == pytest.approx(0.05), "half of what one takes on average"
    assert making.start + 5 * making.each == pytest.approx(0.5)


def test_pause_does_not_raise_the_cost_of_draft_tokens():
    """Else a failure in one text would forbid drafting in all that come after it."""
    making = LinearCost()
    for made in (6, 3, 8):
        making.learn(made, 0.2 + 0.01 * made)
    for _ in range(10_000):
        making.learn(0, 0.2)
        assert making.each < 0.2
    making.learn(4, 0.24)
    assert making.each == pytest.approx(0.01, rel=0.05)


def test_linear_cost_stays_within_what_was_measured():
    falling, steep = LinearCost(), LinearCost()
    for made in (1, 8, 2, 9):
        falling.learn(made, 1.0 / made)
        steep.learn(made, 0.1 * made**2)
    assert falling.each > 0
    assert steep.each * steep.tokens <= steep.seconds
    assert steep.start >= 0


def tree(probabilities: list[float]) -> DraftTree:
    """A chain that says its probabilities."""
    length = len(probabilities)
    return DraftTree([7] * length, list(range(-1, length - 1)), probabilities)


def falling(share: float, length: int) -> Draft:
    """A chain whose probabilities fall by this share."""
    if not length:
        return chosen([[]])
    return Draft([tree([share**depth for depth in range(1, 1 + length)])])


def play_sure(policy: Policy, rounds: int, kept: float, propose: float) -> None:
    """Rounds of chains with stated probabilities; `propose`: seconds a draft token."""
    one = request()
    for _ in range(rounds):
        (asked,) = policy.nodes([one])
        count = policy.trim(falling(0.9, asked)).nodes
        clock = Clock(propose=propose * asked, score=1.0)
        policy.learn([one], [asked], [count], [round(count * kept)], clock)


def test_promises_that_do_not_come_true_are_believed_less():
    boasts, keeps = AdaptiveBudget(FLAT), AdaptiveBudget(FLAT)
    for budget, kept in ((boasts, 0.05), (keeps, 1.0)):
        for _ in range(60):
            asked = budget.nodes(request(), 0)
            count = budget.trim(falling(0.9, asked)).nodes
            budget.learn(request(), RoundResult(asked, count, round(count * kept)))
    assert boasts._probabilities.calibration.share < 0.6
    assert keeps._probabilities.calibration.share > 1


def test_dear_first_rounds_do_not_shut_a_drafter_out():
    """The first rounds are slow; a floor too high for all must come down by itself."""
    policy, one = Policy(FLAT), request()
    for place in range(80):
        (asked,) = policy.nodes([one])
        count = int(policy.trim(falling(0.6, min(6, asked))).count[0])
        propose = (0.9 if place < 4 else 0.02) if asked else 0.0
        clock = Clock(propose=propose, score=1.0)
        policy.learn([one], [asked], [count], [count // 2], clock)
    assert 0 < policy.budget.floors[1] < 0.5


def test_a_width_measured_beside_other_programs_is_not_believed():
    """A forward over 32 rows takes no longer than two over 16."""
    costs = Costs({1: 1.0, 16: 2.7, 32: 25.6})
    assert costs.seconds(16) == 2.7
    assert costs.seconds(32) == pytest.approx(5.4)


def test_pace_is_that_of_the_faster_rounds():
    policy = Policy(FLAT)
    plain = policy.budget.terms.pace
    assert plain == pytest.approx(1 / policy.costs.seconds(1))
    play_sure(policy, 60, kept=0.0, propose=0.0)
    # all draft tokens are wrong, and a forward takes a second
    assert policy.budget.terms.pace == pytest.approx(1.0, rel=0.05)
    policy = Policy(FLAT)
    play_sure(policy, 200, kept=1.0, propose=0.0)
    assert policy.budget.terms.pace > 3.0


@given(st.integers(1, 300))
def test_the_cost_of_any_width_lies_between_its_neighbours(rows):
    costs = Costs({1: 1.0, 4: 1.5, 16: 3.0})
    assert 0 < costs.seconds(rows) <= costs.seconds(rows + 1)
    for known, seconds in {1: 1.0, 4: 1.5, 16: 3.0}.items():
        assert costs.seconds(known) == pytest.approx(seconds)


def test_costs_follow_what_forwards_really_take():
    """The machine is half as fast as measured, and a cheap width is now dear."""
    costs = Costs({1: 1.0, 4: 1.0, 16: 1.0})
    for _ in range(200):
        costs.correct(1, 2.0)
        costs.correct(4, 6.0)
    assert costs.seconds(1) == pytest.approx(2.0, rel=0.1)
    assert costs.seconds(4) == pytest.approx(6.0, rel=0.1)


def test_table_from_another_hour_is_put_right_by_first_forwards():
    costs = Costs({1: 1.0, 8: 1.2})
    for _ in range(4):
        costs.correct(8, 2.4)
    assert 1.3 < costs.seconds(1) < 2.2
    settled = costs.seconds(1)
    costs.correct(8, 4.8)
    # later on one width says little about another
    assert costs.seconds(1) == pytest.approx(settled, rel=0.1)


def test_one_slow_forward_says_little():
    costs = Costs({1: 1.0, 4: 1.0})
    costs.correct(1, 1000.0)
    assert costs.seconds(1) < 3


@dataclass
class Drafted:
    """A drafter in numbers: seconds by text, draft token and token read; acceptance."""

    text: float
    token: float
    reading: float
    kept: float
    prompt: int = 60


def served(
    policy: Policy, drafter: Drafted, texts: int, together: int
) -> tuple[float, float]:
    """Texts of 64 tokens, `together` at a time: seconds, and the share that drafted."""
    costs, spent, rounds, drafted = Costs(policy.cost), 0.0, 0, 0
    prompt, params = [1] * drafter.prompt, SamplingParams(max_tokens=64)
    waiting = [
        Request(1 + one, [*prompt], len(prompt), params, 0) for one in range(texts)
    ]
    running, read, carry = [], {}, {}
    while waiting or running:
        fresh = 0
        while waiting and len(running) < together:
            running.append(waiting.pop())
            fresh += drafter.prompt - 1
        asked = [min(count, 8) for count in policy.nodes(running)]
        unread = [len(one.tokens) - read.get(one.id, 0) for one in running]
        drafting = sum(
            drafter.text + drafter.token * count + drafter.reading * length
            for count, length in zip(asked, unread, strict=True)
            if count
        )
        acceptances = [drafter.kept**k for k in range(1, 9)]
        draft = policy.trim(Draft([tree(acceptances[:count]) for count in asked]))
        made = [len(tree) for tree in draft.trees]
        score = costs.seconds(len(running) + sum(made) + fresh)
        clock = Clock(propose=drafting, score=score, verify=1e-6 * len(running))
        spent, rounds, drafted = spent + clock.total, rounds + 1, drafted + any(made)
        accepted = []
        for one, count in zip(running, made, strict=True):
            owed = carry.get(one.id, 0.0) + sum(acceptances[:count])
            accepted.append(min(int(owed), count))
            carry[one.id] = owed - accepted[-1]
        policy.learn(running, asked, made, accepted, clock, fresh)
        for one, kept, wanted in zip(list(running), accepted, asked, strict=True):
            one.tokens += [1] * min(1 + kept, one.room)
            if wanted:
                read[one.id] = len(one.tokens)
            if not one.room:
                running.remove(one)
                policy.release(one)
    return spent, drafted / rounds


OWN = dict.fromkeys((1, 2, 4), 1.35e-3) | {8: 1.54e-3, 12: 1.78e-3}
OWN |= {16: 2.3e-3, 32: 4.6e-3, 64: 9.2e-3}
"""Seconds of a forward of the bundled target by its rows, on two cores."""
LARGE = {rows: 20 * seconds for rows, seconds in OWN.items()}
"""The same of a model twenty times as large, for the same drafter."""
MODEL = Drafted(text=4e-4, token=1e-4, reading=3e-5, kept=0.8)
"""About what the bundled draft model takes."""


@pytest.mark.parametrize("cost", [OWN, slow_case(LARGE)], ids=["own", "large"])
@pytest.mark.parametrize("together", [1, 4, slow_case(32)])
@pytest.mark.parametrize(
    "drafter",
    [
        MODEL,
        Drafted(text=4e-4, token=1e-4, reading=3e-5, kept=0.1),
        Drafted(text=4e-4, token=1e-4, reading=1e-4, kept=0.5, prompt=2000),
        Drafted(text=2e-5, token=1e-6, reading=1e-7, kept=0.3),
    ],
    ids=["model", "poor", "long", "copies"],
)
def test_drafting_takes_no_longer_in_a_batch(cost, together, drafter):
    plain = served(Policy(cost, FixedBudget(0)), drafter, 12 * together, together)[0]
    first = BUDGET * Costs(cost).seconds(together)  # what it takes to find out
    first += 2 * drafter.reading * drafter.prompt * together
    ours = served(Policy(cost), drafter, 12 * together, together)[0]
    assert ours <= 1.02 * plain + first


@pytest.mark.parametrize(
    ("cost", "together", "faster"), [(OWN, 1, 1.3), (LARGE, 1, 2.0), (LARGE, 4, 1.3)]
)
def test_rows_to_spare_are_drafted_in(cost, together, faster):
    plain = served(Policy(cost, FixedBudget(0)), MODEL, 12 * together, together)[0]
    spent, share = served(Policy(cost), MODEL, 12 * together, together)
    assert plain / spent > faster
    assert share > 0.5
