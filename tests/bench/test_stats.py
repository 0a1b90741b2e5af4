"""Intervals hold the truth."""

import numpy as np
import pytest

from foreword.errors import InvalidRequest
from foreword_lab.bench.stats import (
    Interval,
    median_of,
    percentiles,
    speed,
    speedup,
)


def costs(tokens: np.ndarray, seconds: np.ndarray) -> np.ndarray:
    return np.stack([tokens, seconds], axis=1).astype(np.float64)


def pair(
    generator: np.random.Generator, prompts: int = 40
) -> tuple[np.ndarray, np.ndarray]:
    """Costs of two entries on unlike prompts; the first is 2 times as fast, ± 20 %."""
    tokens = generator.integers(20, 200, prompts)
    seconds = tokens * generator.lognormal(0, 0.8, prompts)
    noise = generator.uniform(0.8, 1.2, prompts)
    return costs(tokens, seconds / 2 * noise), costs(tokens, seconds)


def test_speed_is_total_tokens_over_total_seconds():
    assert speed(costs(np.array([10, 90]), np.array([1, 1]))) == 50
    assert speed(costs(np.array([10, 90]), np.array([1, 4]))) == 20


def test_the_middle_is_the_ratio_of_speeds():
    fast = costs(np.array([30, 30]), np.array([1, 2]))
    slow = costs(np.array([20, 20]), np.array([4, 4]))
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


def test_median_lies_within_its_interval():
    assert median_of([3.0, 1.0, 2.0]).mid == 2.0
    assert median_of([5.0] * 4) == Interval(5.0, 5.0, 5.0)
    wide, narrow = median_of([1.0, 9.0] * 3), median_of([4.9, 5.1] * 3)
    assert wide.high - wide.low > narrow.high - narrow.low


def test_percentiles_of_known_numbers():
    assert percentiles([float(number) for number in range(101)], (50, 95)) == (50, 95)
    assert percentiles([], (50, 95)) == (None, None)
