"""Intervals hold the truth, p-values are scipy's, and tests have their power."""

import numpy as np
import pytest
import torch
from scipy.stats import chi2, ncx2

from foreword.errors import InvalidRequest
from foreword_lab.bench.stats import (
    LEVEL,
    Interval,
    chi_square_cdf,
    fit,
    homogeneity,
    median_of,
    over_prompts,
    percentiles,
    smallest_variation,
    speed,
    speedup,
)


def costs(tokens: np.ndarray, seconds: np.ndarray) -> np.ndarray:
    return np.stack([tokens, seconds], axis=1).astype(np.float64)


def pair(
    generator: np.random.Generator, prompts: int = 40
) -> tuple[np.ndarray, np.ndarray]:
    """Costs of two entries on prompts of very different difficulty; the first is 2 times as
    fast, give or take 20 %.
    """
    tokens = generator.integers(20, 200, prompts)
    seconds = tokens * generator.lognormal(0, 0.8, prompts)
    noise = generator.uniform(0.8, 1.2, prompts)
    return costs(tokens, seconds / 2 * noise), costs(tokens, seconds)


def test_speed_is_total_tokens_over_total_seconds():
    assert speed(costs(np.array([10, 90]), np.array([1, 1]))) == 50
    assert speed(costs(np.array([10, 90]), np.array([1, 4]))) == 20


def test_the_middle_is_the_ratio_of_speeds():
    fast, slow = (
        costs(np.array([30, 30]), np.array([1, 2])),
        costs(np.array([20, 20]), np.array([4, 4])),
    )
    assert speedup(fast, slow).mid == pytest.approx(20 / 5)


def test_entry_is_as_fast_as_itself():
    mine, _ = pair(np.random.default_rng(1))
    interval = speedup(mine, mine)
    assert interval.low == interval.mid == interval.high == 1


def test_interval_covers_the_truth_in_95_percent():
    generator = np.random.default_rng(2)
    runs = [speedup(*pair(generator), times=400, seed=run) for run in range(300)]
    covered = np.mean([interval.low <= 2 <= interval.high for interval in runs])
    assert 0.90 <= covered <= 0.98


def test_pairing_removes_the_difficulty_of_prompts():
    mine, other = pair(np.random.default_rng(3))
    paired, shuffled = speedup(mine, other), speedup(mine, np.roll(other, 7, axis=0))
    assert paired.high - paired.low < 0.5 * (shuffled.high - shuffled.low)


def test_the_same_data_give_the_same_interval():
    mine, other = pair(np.random.default_rng(4))
    assert speedup(mine, other) == speedup(mine, other)
    assert speedup(mine, other) != speedup(mine, other, seed=1)


@pytest.mark.parametrize(("ours", "theirs"), [(2, 3), (0, 0)])
def test_other_prompts_cannot_be_compared(unchecked, ours, theirs):
    with pytest.raises(InvalidRequest, match="same prompts on both sides"):
        speedup(np.ones((ours, 2)), np.ones((theirs, 2)))


def test_any_statistic_of_prompts_gets_the_interval_of_speeds():
    ours, theirs = pair(np.random.default_rng(4))
    found = over_prompts(
        np.concatenate([ours, theirs], axis=1),
        lambda sums: sums[0] / sums[1] / (sums[2] / sums[3]),
    )
    expected = speedup(ours, theirs)
    assert (found.low, found.mid, found.high) == pytest.approx(
        (expected.low, expected.mid, expected.high)
    )


def test_without_prompts_there_is_nothing_to_resample():
    with pytest.raises(InvalidRequest, match="got none"):
        over_prompts(np.zeros((0, 2)), lambda sums: float(sums[0]))


def test_median_lies_within_its_interval():
    assert median_of([3.0, 1.0, 2.0]).mid == 2.0
    assert median_of([5.0] * 4) == Interval(5.0, 5.0, 5.0)
    wide, narrow = median_of([1.0, 9.0] * 3), median_of([4.9, 5.1] * 3)
    assert wide.high - wide.low > narrow.high - narrow.low


def test_percentiles_of_known_numbers():
    assert percentiles([float(number) for number in range(101)], (50, 95)) == (50, 95)
    assert percentiles([], (50, 95)) == (None, None)


EVEN = [0.25, 0.25, 0.25, 0.25]


def drawn(expected, samples, seed):
    rng = torch.Generator().manual_seed(seed)
    weights = torch.tensor(expected, dtype=torch.float64)
    index = weights.multinomial(samples, replacement=True, generator=rng)
    return index.bincount(minlength=len(expected)).tolist()


@pytest.mark.parametrize("freedom", [1, 9, 72])
@pytest.mark.parametrize("statistic", [0.0, 0.3, 12.0, 140.0])
def test_distribution_functions_are_those_of_scipy(statistic, freedom):
    assert chi_square_cdf(statistic, freedom) == pytest.approx(
        chi2.cdf(statistic, freedom), abs=1e-12
    )
    for shift in (0.5, 20.0, 300.0):
        assert chi_square_cdf(statistic, freedom, shift) == pytest.approx(
            ncx2.cdf(statistic, freedom, shift), abs=1e-9
        )


def test_stated_deviation_is_found_as_often_as_stated():
    """In the direction in which the bound is tight: from half of the mass to the rest."""
    samples = 2000
    least = smallest_variation(samples, 4)
    shifted = [0.25 + least / 2] * 2 + [0.25 - least / 2] * 2
    found = [
        fit(drawn(shifted, samples, seed), [samples / 4] * 4).p_value < LEVEL
        for seed in range(400)
    ]
    assert sum(found) / len(found) == pytest.approx(0.9, abs=0.05)


def test_an_exact_sampler_is_seldom_refused():
    found = [
        fit(drawn(EVEN, 400, seed), [100] * 4).p_value < LEVEL for seed in range(500)
    ]
    assert sum(found) / len(found) < 4 * LEVEL


def test_more_samples_detect_less():
    found = [smallest_variation(samples, 16) for samples in (100, 1000, 10_000)]
    assert found == sorted(found, reverse=True)
    assert smallest_variation(0, 16) == smallest_variation(100, 1) == 1.0


def test_rare_cells_are_joined():
    assert fit([90, 4, 3, 3], [90, 4, 3, 3]).cells == 2
    assert fit([98, 2], [98, 2]).cells == 1
    assert fit([50, 50, 0], [50, 48, 2]).samples == 100


def test_two_samples_are_compared():
    same = homogeneity(drawn(EVEN, 400, 1), drawn(EVEN, 400, 2))
    other = homogeneity(drawn(EVEN, 400, 1), drawn([0.4, 0.3, 0.2, 0.1], 400, 2))
    assert same.p_value > LEVEL > other.p_value
    assert homogeneity([5, 5], [0, 0]).p_value == 1.0
