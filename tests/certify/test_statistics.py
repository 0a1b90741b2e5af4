"""The tests' p-values are scipy's, and the power that they state is what they have."""

import pytest
import torch
from scipy.stats import chi2, ncx2

from foreword.certify.statistics import (
    LEVEL,
    chi_square_cdf,
    fit,
    homogeneity,
    noncentral_cdf,
    smallest_variation,
)

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
        assert noncentral_cdf(statistic, freedom, shift) == pytest.approx(
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
