"""No estimator takes in what is not finite, or is thrown for ever by one stall."""

import math
from collections.abc import Callable
from dataclasses import fields, is_dataclass
from random import Random

import pytest
import torch

from foreword.budget import Costs
from foreword.draft.ensemble.cascade import DecayedMean
from foreword.draft.lookup.recycle import RecyclingDrafter
from foreword.estimators import CalibrationRatio, LinearCost, finite, steadied
from foreword.sampling.streams import NoiseStreams
from foreword.types import (
    Batch,
    Clock,
    Draft,
    DraftTree,
    Request,
    SamplingParams,
    Scores,
    Verdict,
)
from policy import Policy
from running import Case, prompts, target

BAD = (math.nan, math.inf, -math.inf)
TABLE = {1: 0.01, 4: 0.012, 16: 0.02}


def numbers(of: object) -> list[float]:
    """All that an estimator holds."""
    if isinstance(of, float | int):
        return [float(of)]
    if isinstance(of, dict):
        return [number for value in of.values() for number in numbers(value)]
    if isinstance(of, list | tuple):
        return [number for value in of for number in numbers(value)]
    if is_dataclass(of):
        return numbers([getattr(of, field.name) for field in fields(of)])
    names = getattr(type(of), "__slots__", ()) or getattr(of, "__dict__", {})
    return numbers([getattr(of, name) for name in names])


def measured() -> Policy:
    policy = Policy(TABLE)
    for _ in range(20):
        round_(policy, 0.001)
    return policy


def round_(policy: Policy, draft_token: float, score: float = 0.012) -> int:
    """A round of a text with three accepted draft tokens; returns how many it had."""
    one = Request(1, [1, 2, 3], 3, SamplingParams(), seed=0)
    (asked,) = policy.nodes([one])
    drafted = min(asked, 4)
    clock = Clock(draft_token if asked else 0.0, score, 0.0001, 0.0001)
    policy.learn([one], [asked], [drafted], [min(drafted, 3)], clock)
    return asked


def costs() -> Costs:
    return Costs(TABLE)


def test_what_is_finite() -> None:
    assert finite()
    assert finite(0.0, -1e300)
    for bad in BAD:
        assert not finite(1.0, bad)
        assert steadied(bad, 2.0) == 2.0
    steady = [steadied(seen, 1.0) for seen in (0.0, 3.0, 4.0, 1e9)]
    assert steady == [0.0, 3.0, 4.0, 4.0]
    assert steadied(1e9, 0.0) == 1e9, "nothing was expected yet"


LEARNERS: dict[str, tuple[Callable[[], object], Callable[..., object]]] = {
    "making": (LinearCost, lambda one, bad: one.learn(3, bad)),
    "earned": (CalibrationRatio, lambda one, bad: one.promise(bad)),
    "hope": (DecayedMean, lambda one, bad: one.learn(bad)),
    "costs": (costs, lambda one, bad: one.correct(4, bad)),
    "drafting": (measured, lambda one, bad: round_(one, bad)),
    "scoring": (measured, lambda one, bad: round_(one, 0.001, score=bad)),
}


@pytest.mark.parametrize("bad", BAD)
@pytest.mark.parametrize("name", LEARNERS)
def test_only_finite_numbers_are_learned(name: str, bad: float) -> None:
    make, teach = LEARNERS[name]
    one = make()
    for _ in range(3):
        teach(one, bad)
    assert all(map(math.isfinite, numbers(one)))


@pytest.mark.parametrize("name", LEARNERS)
def test_times_of_zero_break_nothing(name: str) -> None:
    make, teach = LEARNERS[name]
    one = make()
    for _ in range(2000):
        teach(one, 0.0)
    assert all(map(math.isfinite, numbers(one)))
    if isinstance(one, Costs):
        for _ in range(200):
            one.correct(4, 0.012)
        assert one.seconds(4) == pytest.approx(0.012, rel=0.1)


def test_one_stall_in_drafting_is_forgotten_soon() -> None:
    making = LinearCost()
    for turn in range(50):
        making.learn(4 + turn % 3, 0.001 * (4 + turn % 3))
    before = making.each
    making.learn(5, 60.0)
    assert making.each < 4 * before
    assert making.start < 0.1


# thousands of rounds: checks of types would take most of the time
@pytest.mark.slow
def test_noisy_clocks_keep_costs_of_unused_budgets() -> None:
    table, rng = costs(), Random(0)
    for _ in range(3000):
        table.correct(4, 0.012 * math.exp(rng.gauss(0, 0.8)))
    assert table.seconds(4) == pytest.approx(0.012, rel=0.5)
    assert table.seconds(1) / table.seconds(4) == pytest.approx(10 / 12, rel=0.5)


@pytest.mark.parametrize("bad", BAD)
def test_recycling_keeps_only_finite_logits(bad: float) -> None:
    drafter, vocab = RecyclingDrafter(), target().vocab
    one = Case(prompts()[0], SamplingParams(temperature=0.8)).request(frozenset())
    batch = Batch((one,), NoiseStreams(vocab, shared=True))
    verdict = Verdict([[]], [5], 0)
    usual, odd = torch.randn(2, 1, vocab), torch.full((1, vocab), bad)
    for logits in (usual[0], odd, usual[1]):
        drafter.observe(batch, Draft([DraftTree()]), verdict, Scores((logits,)))
        one.rounds += 1
        (tree,) = drafter.propose(batch, [4]).trees
        assert tree.tokens
        assert all(map(math.isfinite, tree.probabilities))


def test_calibration_fades_while_nothing_is_promised() -> None:
    """Else a drafter whose promises came to nothing would not be let promise again."""
    earned = CalibrationRatio()
    for _ in range(200):
        earned.promise(10.0)
    assert earned.share == 0.2
    for _ in range(600):
        earned.promise(0.0)
    assert earned.share == pytest.approx(1.0, abs=0.05)


def test_floor_stays_a_probability() -> None:
    """Above it nothing is drafted, so nothing would be learnt that lowers it."""
    policy = Policy(TABLE)
    budget = policy.budget
    one = Request(1, [1, 2, 3], 3, SamplingParams(), seed=0)
    promising = Draft([DraftTree([5, 6, 7, 8], [-1, 0, 1, 2], [0.9, 0.8, 0.7, 0.6])])
    for draft in [promising] * 20 + [Draft([DraftTree()])] * 100:
        (asked,) = policy.nodes([one])
        drafted = len(policy.trim(draft).trees[0]) if asked else 0
        clock = Clock(0.05 if asked else 0.0, 0.012, 0.0001, 0.0001)
        policy.learn([one], [asked], [drafted], [0], clock)
        assert 0 <= budget.floors[0] <= budget.floors[1] <= 0.8
