"""Statistics of measurements: intervals by the bootstrap over prompts, and Pearson's
chi-square test with the smallest deviation that it detects.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
from jaxtyping import Float

from foreword.errors import InvalidRequest
from foreword_train.report.interval import RESAMPLES, Interval, resamples


def median_of(samples: Sequence[float], *, seed: int = 0) -> Interval:
    """Return the median, with its interval."""
    values = np.array(samples)
    medians = np.median(values[resamples(len(values), seed=seed)], axis=1)
    return Interval.of(float(np.median(values)), medians)


def percentiles(
    values: Sequence[float], shares: Sequence[int]
) -> tuple[float | None, ...]:
    """Return percentiles, linear between neighbours; None for no values."""
    if not values:
        return (None,) * len(shares)
    return tuple(map(float, np.percentile(values, shares)))


Costs: TypeAlias = Float[np.ndarray, "prompt 2"]
"""Emitted tokens and seconds, summed over the repeats of each prompt; float64."""


def speed(costs: Costs) -> float:
    """Return tokens per second of all prompts: sum of tokens over sum of seconds."""
    tokens, seconds = costs.sum(axis=0)
    return float(tokens / seconds)


def speedup(
    ours: Costs, theirs: Costs, *, times: int = RESAMPLES, seed: int = 0
) -> Interval:
    """Return the ratio of tokens per second of `ours` to `theirs` on the same prompts.

    The same prompts are drawn for both sides, because a prompt that is slow for one is
    slow for the other. With few prompts the interval is somewhat too narrow. Raises
    InvalidRequest unless both sides have the same number of prompts, at least one.
    """
    if ours.shape != theirs.shape or not len(ours):
        raise InvalidRequest(
            "cannot compare speeds: need the same prompts on both sides, got "
            f"{len(ours)} and {len(theirs)}"
        )
    drawn = resamples(len(ours), times, seed)
    mine, other = ours[drawn].sum(axis=1), theirs[drawn].sum(axis=1)
    ratios = (mine[:, 0] / mine[:, 1]) / (other[:, 0] / other[:, 1])
    return Interval.of(speed(ours) / speed(theirs), ratios)


Counts: TypeAlias = Float[np.ndarray, "prompt ..."]
"""Sums of each prompt, whatever they count; float64."""


def over_prompts(
    counts: Counts, statistic: Callable[[np.ndarray], float], *, seed: int = 0
) -> Interval:
    """Return a statistic of the sums over all prompts, with its interval.

    `statistic` takes the sum of `counts` over its prompts. With one prompt the interval
    has no width. Raises InvalidRequest without a prompt.
    """
    if not len(counts):
        raise InvalidRequest(
            "cannot give an interval: it resamples prompts, got none. Give one"
        )
    drawn = resamples(len(counts), seed=seed)
    values = [statistic(counts[chosen].sum(axis=0)) for chosen in drawn]
    return Interval.of(statistic(counts.sum(axis=0)), values)


LEVEL = 0.01
"""Probability that a test of an exact sampler is below this p-value."""
POWER = 0.9
"""Probability with which the stated deviation is detected, twice (`confirmed`)."""
FEW = 5.0
"""Samples. Cells with fewer expected ones are joined: below, the statistic is not
chi-square distributed (Cochran 1954).
"""
HALVINGS = 60
"""Bisection steps: below the rounding of float64."""

Cells = list[tuple[float, float]]
"""(number seen, number expected) of each cell."""


@dataclass(frozen=True, slots=True)
class Fit:
    """Result of one test."""

    samples: int
    cells: int
    p_value: float

    @property
    def detects(self) -> float:
        """Smallest total variation that is found twice with probability POWER."""
        return smallest_variation(self.samples, self.cells)


def fit(counts: Sequence[float], expected: Sequence[float], rest: float = 1.0) -> Fit:
    """Test counts against the numbers expected of each cell; rare cells are joined.

    `rest`: share of the expected numbers that comes from other samples.
    """
    joined = _joined(list(zip(counts, expected, strict=True)))
    freedom = len(joined) - 1
    samples = int(sum(counts) * rest)
    if freedom < 1 or not rest:
        return Fit(int(sum(counts)), len(joined), 1.0)
    statistic = sum((seen - mean) ** 2 / mean for seen, mean in joined) / rest
    return Fit(samples, len(joined), 1 - chi_square_cdf(statistic, freedom))


def confirmed(draw: Callable[[int], Fit]) -> tuple[Fit, Fit | None]:
    """Return the test of samples 0, and of samples 1 where it is below LEVEL.

    An exact sampler is below LEVEL twice once in 10,000 runs.
    """
    first = draw(0)
    return first, draw(1) if first.p_value < LEVEL else None


def homogeneity(first: Sequence[float], second: Sequence[float]) -> Fit:
    """Test whether two equally long rows of counts have one distribution."""
    share = sum(first) / max(1.0, sum(first) + sum(second))
    sums = map(sum, zip(first, second, strict=True))
    expected = [each * share for each in sums]
    return fit(first, expected, 1 - share)


def _joined(cells: Cells) -> Cells:
    """Return the cells, with all rare ones as one."""
    bulk = [(seen, mean) for seen, mean in cells if mean >= FEW]
    rare = [(seen, mean) for seen, mean in cells if mean < FEW]
    seen = sum(one for one, _ in rare)
    mean = sum(one for _, one in rare)
    if mean >= FEW or (seen and not bulk):
        return [*bulk, (seen, mean)]
    if rare and bulk:
        # too rare even together: the last cell takes them
        last_seen, last_mean = bulk[-1]
        return [*bulk[:-1], (last_seen + seen, last_mean + mean)]
    return bulk


def chi_square_cdf(statistic: float, freedom: int, shift: float = 0.0) -> float:
    """Return P(X <= statistic) for chi-square with so many degrees of freedom and the
    noncentrality `shift`: a mixture over Poisson.
    """
    import torch  # slow to import, and not needed for speeds

    most = int(shift / 2 + 12 * math.sqrt(shift / 2 + 1)) + 20 if shift else 1
    step = torch.arange(most, dtype=torch.float64)
    mean = torch.tensor(shift / 2, dtype=torch.float64)
    weight = (torch.xlogy(step, mean) - mean - torch.lgamma(step + 1)).exp()
    half = torch.full_like(step, statistic / 2)
    return float(weight @ torch.special.gammainc(freedom / 2 + step, half))


def smallest_variation(samples: int, cells: int) -> float:
    """Return the smallest total variation that so many samples, and as many new ones,
    both detect with probability POWER at level LEVEL, wherever it lies.

    A deviation of total variation d has a noncentrality of at least 4 d^2 a sample, by
    Cauchy and Schwarz.
    """
    freedom = cells - 1
    if freedom < 1 or not samples:
        return 1.0
    limit = _rising(lambda x: chi_square_cdf(x, freedom), 1 - LEVEL)
    shift = _rising(lambda x: 1 - chi_square_cdf(limit, freedom, x), math.sqrt(POWER))
    return min(1.0, math.sqrt(shift / samples) / 2)


def _rising(of: Callable[[float], float], value: float) -> float:
    """Return where a rising function has a value."""
    low, high = 0.0, 1.0
    while of(high) < value:
        high *= 2
    for _ in range(HALVINGS):
        middle = (low + high) / 2
        if of(middle) < value:
            low = middle
        else:
            high = middle
    return high
