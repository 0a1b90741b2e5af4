"""What the confidence learns is true, and no request can spoil it for the others."""

import math
import random

import pytest

from foreword.draft.lm import LanguageModelDrafter
from foreword.draft.tree.calibration import Calibration
from foreword.types import SamplingParams
from running import DTYPE, Case, draft, drafter, engine, finish, prompts, target

NOTHING = -math.inf
FILTERS = (
    {"top_p": 0.95},
    {"top_p": 0.3},
    {"top_k": 1},
    {"top_k": 5},
    {"min_p": 0.3},
    {"typical_p": 0.5},
)


def taught(
    confidence: Calibration, truth: float, rounds: int, temperature: float = 0.0
) -> Calibration:
    """Draws that are off by Gumbel errors of this scale."""
    rng = random.Random(0)
    for _ in range(rounds):
        values = [rng.gauss(0, 2) for _ in range(8)]
        errors = [-truth * math.log(rng.expovariate(1.0)) for _ in values]
        drawn = max(range(8), key=lambda place: values[place] + errors[place])
        confidence.learn(values, drawn, temperature)
    return confidence


@pytest.mark.parametrize(
    ("values", "drawn"),
    [
        ([1.0, NOTHING, NOTHING], 0),
        ([1.0, 0.5, NOTHING], 2),
        ([NOTHING] * 3, 0),
        ([math.nan, 1.0, 0.5], 1),
        ([math.inf, 1.0, 0.5], 1),
        ([1.0], 0),
    ],
)
@pytest.mark.parametrize("temperature", [0.0, 0.8])
def test_what_says_nothing_teaches_nothing(
    values: list[float], drawn: int, temperature: float
) -> None:
    confidence = Calibration()
    confidence.learn(values, drawn, temperature)
    assert confidence == Calibration()


def test_a_child_that_a_filter_forbids_has_no_mass() -> None:
    filtered, short = Calibration(), Calibration()
    for drawn in (0, 1, 2, 1):
        filtered.learn([2.0, 1.5, 0.2, NOTHING, NOTHING], drawn, 0.8)
        short.learn([2.0, 1.5, 0.2], drawn, 0.8)
    assert filtered == short
    assert filtered.error != Calibration().error


def test_what_is_learnt_from_filtered_children_is_true() -> None:
    """The target draws among what is left: the estimate still finds the scale."""
    rng, confidence = random.Random(1), Calibration()
    for _ in range(3000):
        values = [rng.gauss(0, 2) for _ in range(8)]
        errors = [-1.5 * math.log(rng.expovariate(1.0)) for _ in values]
        kept = sorted(range(8), key=lambda place: -values[place])[
            : rng.choice((1, 2, 3, 5))
        ]
        drawn = max(kept, key=lambda place: values[place] + errors[place])
        confidence.learn(
            [value if place in kept else NOTHING for place, value in enumerate(values)],
            drawn,
            0.0,
        )
    assert confidence.error == pytest.approx(1.5, rel=0.15)


@pytest.mark.parametrize("temperature", [5e-324, 1e-200, 1e-6, 100.0])
def test_no_temperature_spoils_what_was_learnt(temperature: float) -> None:
    """A hot text says nothing of the drafter's error; a cold one breaks nothing."""
    rng, confidence = random.Random(2), taught(Calibration(), 0.6, 1000)
    before = confidence.error
    for _ in range(5000):
        values = sorted(
            (rng.gauss(0, 1) / min(1, temperature) for _ in range(8)), reverse=True
        )
        confidence.learn(
            values, 0 if temperature < 1 else rng.randrange(8), temperature
        )
    assert math.isfinite(confidence.error)
    if temperature > 1:
        assert confidence.error == pytest.approx(before, rel=0.1)
    assert taught(confidence, 0.6, 1000).error == pytest.approx(0.6, rel=0.2)


def test_from_the_far_end_it_comes_back() -> None:
    for drawn in (0, 7):
        confidence = Calibration()
        for _ in range(2000):
            confidence.learn([7.0, 6.0, 5.0, 4.0, 3.0, 2.0, 1.0, 0.0], drawn, 0.0)
        assert not 0.2 < confidence.error < 10
        assert taught(confidence, 0.6, 1000).error == pytest.approx(0.6, rel=0.2)


@pytest.mark.sample(3)
@pytest.mark.parametrize("name", ["lm", "eagle", "dspark", "medusa"])
def test_filtered_requests_spoil_no_calibration(name: str) -> None:
    """The distribution that a filter leaves has fewer tokens than children drawn."""
    greedy = [
        Case(prompt, SamplingParams(temperature=0, max_tokens=24, ignore_eos=True))
        for prompt in prompts()
    ]
    spoiled, fresh = drafter(name, DTYPE), drafter(name, DTYPE)
    short = dict(temperature=0.8, max_tokens=12, ignore_eos=True)
    filtered = [
        Case(prompt, SamplingParams(seed=seed, **short, **filters))
        for seed, (prompt, filters) in enumerate(
            zip((*prompts(), prompts()[0]), FILTERS, strict=True)
        )
    ]
    loop = engine(target(DTYPE), spoiled, 6)
    others = [one.request.stats for one in finish(loop, filtered)]
    assert sum(one.drafted for one in others) > 4 * len(filtered)
    after = [one.request.stats for one in finish(loop, greedy)]
    before = [
        one.request.stats for one in finish(engine(target(DTYPE), fresh, 6), greedy)
    ]
    assert loop.failed is None
    assert sum(one.drafted for one in after) > 0.8 * sum(one.drafted for one in before)
    both = [sum(one.accepted for one in half) for half in (after, before)]
    assert both[0] >= 0.9 * both[1] > 0


@pytest.mark.parametrize("filters", FILTERS, ids=str)
def test_children_are_tokens_that_may_come(filters: dict[str, float]) -> None:
    """What the levels hand over is what one call in C does: all with a probability."""
    handed: list[list[float]] = []

    class Noting(Calibration):
        def learn(self, values, drawn, temperature):
            handed.append(list(values))
            super().learn(values, drawn, temperature)

    proposer = LanguageModelDrafter(draft(DTYPE))
    proposer.calibration = Noting()
    asked = [
        Case(one, SamplingParams(temperature=0.8, seed=3, max_tokens=16, **filters))
        for one in prompts()
    ]
    finish(engine(target(DTYPE), proposer, 4), asked)
    assert handed
    assert all(map(math.isfinite, (value for values in handed for value in values)))
