"""Pearson's chi-square test, and the smallest deviation that it detects."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch

LEVEL = 0.01
"""Probability that a test of an exact sampler is below this p-value."""
POWER = 0.9
"""Probability with which the stated deviation is detected."""
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
        """Smallest total variation found with probability POWER at level LEVEL."""
        return smallest_variation(self.samples, self.cells)


def fit(counts: Sequence[float], expected: Sequence[float]) -> Fit:
    """Test counts against the numbers expected of each cell; rare cells are joined."""
    samples = int(sum(counts))
    joined = _joined(list(zip(counts, expected, strict=True)))
    if len(joined) < 2:
        return Fit(samples, len(joined), 1.0)
    return Fit(samples, len(joined), _p_value(_statistic(joined), joined))


def homogeneity(first: Sequence[float], second: Sequence[float]) -> Fit:
    """Test whether two equally long rows of counts have one distribution."""
    samples, others = sum(first), sum(second)
    rows = list(zip(first, second, strict=True))
    pairs = [(one, one + two) for one, two in rows]
    share = samples / max(1.0, samples + others)
    joined = _joined([(one, both * share) for one, both in pairs])
    if len(joined) < 2 or share == 1:
        return Fit(int(samples), len(joined), 1.0)
    p_value = _p_value(_statistic(joined) / (1 - share), joined)
    return Fit(int(samples * (1 - share)), len(joined), p_value)


def _statistic(cells: Cells) -> float:
    return sum((seen - mean) ** 2 / mean for seen, mean in cells)


def _p_value(statistic: float, cells: Cells) -> float:
    return 1 - chi_square_cdf(statistic, len(cells) - 1)


def _joined(cells: Cells) -> Cells:
    """Return the cells, with all rare ones as one."""
    kept = [(seen, mean) for seen, mean in cells if mean >= FEW]
    rare = [(seen, mean) for seen, mean in cells if mean < FEW]
    seen = sum(one for one, _ in rare)
    mean = sum(one for _, one in rare)
    if mean >= FEW or (seen and not kept):
        return [*kept, (seen, mean)]
    if rare and kept:
        # too rare even together: the last cell takes them
        last_seen, last_mean = kept[-1]
        return [*kept[:-1], (last_seen + seen, last_mean + mean)]
    return kept


def chi_square_cdf(statistic: float, freedom: int) -> float:
    """Return P(X <= statistic) for chi-square with so many degrees of freedom."""
    return _gamma(freedom / 2, statistic / 2)


def noncentral_cdf(statistic: float, freedom: int, shift: float) -> float:
    """Return the same with the noncentrality `shift`: a mixture over Poisson."""
    most = int(shift / 2 + 12 * math.sqrt(shift / 2 + 1)) + 20
    step = torch.arange(most, dtype=torch.float64)
    mean = torch.tensor(shift / 2, dtype=torch.float64)
    weight = (torch.xlogy(step, mean) - mean - torch.lgamma(step + 1)).exp()
    half = torch.full_like(step, statistic / 2)
    parts = torch.special.gammainc(freedom / 2 + step, half)
    return float(weight @ parts)


def smallest_variation(samples: int, cells: int) -> float:
    """Return the smallest total variation that so many samples detect with probability
    POWER at level LEVEL, wherever it lies.

    A deviation of total variation d has a noncentrality of at least 4 d^2 a sample, by
    Cauchy and Schwarz.
    """
    freedom = cells - 1
    if freedom < 1 or not samples:
        return 1.0
    limit = _rising(lambda x: chi_square_cdf(x, freedom), 1 - LEVEL)
    shift = _rising(lambda x: 1 - noncentral_cdf(limit, freedom, x), POWER)
    return min(1.0, math.sqrt(shift / samples) / 2)


def _gamma(shape: float, value: float) -> float:
    """Return the regularised lower incomplete gamma function."""
    pair = torch.tensor([shape, value], dtype=torch.float64)
    return float(torch.special.gammainc(pair[0], pair[1]))


def _rising(of: Callable[[float], float], wanted: float) -> float:
    """Return where a rising function has a value."""
    low, high = 0.0, 1.0
    while of(high) < wanted:
        high *= 2
    for _ in range(HALVINGS):
        middle = (low + high) / 2
        if of(middle) < wanted:
            low = middle
        else:
            high = middle
    return high
