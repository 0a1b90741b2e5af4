"""Statistics of measurements: intervals by the bootstrap over prompts."""

from collections.abc import Sequence
from typing import TypeAlias

import numpy as np
from jaxtyping import Float

from foreword.errors import InvalidRequest
from foreword_train.report.interval import RESAMPLES, Interval, resamples


def median_of(samples: Sequence[float]) -> Interval:
    """Return the median, with its interval."""
    values = np.array(samples)
    medians = np.median(values[resamples(len(values))], axis=1)
    return Interval.of(float(np.median(values)), medians)


def percentiles(
    values: Sequence[float],
    shares: Sequence[int],
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
    ours: Costs,
    theirs: Costs,
    *,
    times: int = RESAMPLES,
    seed: int = 0,
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
