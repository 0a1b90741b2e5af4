"""Confidence intervals of speed ratios: a paired bootstrap over prompts."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
from jaxtyping import Float

from foreword.errors import InvalidRequest

RESAMPLES = 2000
LEVEL = 0.95


@dataclass(frozen=True, slots=True)
class Interval:
    """An estimate and the ends of its 95 % interval."""

    low: float
    mid: float
    high: float

    @classmethod
    def of(cls, mid: float, resampled: Sequence[float] | np.ndarray) -> Interval:
        """Return an estimate with the interval of its values on resampled data."""
        low, high = np.quantile(resampled, [(1 - LEVEL) / 2, (1 + LEVEL) / 2])
        return cls(float(low), float(mid), float(high))

    @property
    def ends(self) -> str:
        """The ends of the interval, as reports write them."""
        return f"{self.low:.2f}–{self.high:.2f}"

    @property
    def text(self) -> str:
        """The estimate and its interval, as reports write them."""
        return f"{self.mid:.2f} ({self.ends})"


Costs: TypeAlias = Float[np.ndarray, "prompt 2"]
"""Emitted tokens and seconds, summed over the repeats of each prompt; float64."""


def speed(costs: Costs) -> float:
    """Return tokens per second over all prompts: the sum of tokens over the sum of
    seconds.
    """
    tokens, seconds = costs.sum(axis=0)
    return float(tokens / seconds)


def speedup(
    ours: Costs, theirs: Costs, *, resamples: int = RESAMPLES, seed: int = 0
) -> Interval:
    """Return the ratio of tokens per second of `ours` to `theirs` on the same prompts.

    Prompts are drawn with replacement, the same for both sides, because a prompt that
    is slow for one is slow for the other (percentile bootstrap: Efron and Tibshirani
    1993, chapters 8 and 13). With few prompts the interval is somewhat too narrow.
    Raises InvalidRequest unless both sides have the same number of prompts, at least
    one.
    """
    if ours.shape != theirs.shape or not len(ours):
        raise InvalidRequest(
            "cannot compare speeds: need the same prompts on both sides, got "
            f"{len(ours)} and {len(theirs)}"
        )
    drawn = np.random.default_rng(seed).integers(len(ours), size=(resamples, len(ours)))
    mine, other = ours[drawn].sum(axis=1), theirs[drawn].sum(axis=1)
    ratios = (mine[:, 0] / mine[:, 1]) / (other[:, 0] / other[:, 1])
    return Interval.of(speed(ours) / speed(theirs), ratios)


Counts: TypeAlias = Float[np.ndarray, "prompt ..."]
"""Sums of each prompt, whatever they count; float64."""


def over_prompts(
    counts: Counts,
    statistic: Callable[[np.ndarray], float],
    *,
    resamples: int = RESAMPLES,
    seed: int = 0,
) -> Interval:
    """Return a statistic of the sums over all prompts, with its interval by the same
    bootstrap as `speedup`.

    `statistic` takes the sum of `counts` over its prompts. With one prompt the interval
    has no width. Raises InvalidRequest without a prompt.
    """
    if not len(counts):
        raise InvalidRequest(
            "cannot give an interval: it resamples prompts, got none. Give one"
        )
    drawn = np.random.default_rng(seed).integers(
        len(counts), size=(resamples, len(counts))
    )
    values = [statistic(counts[chosen].sum(axis=0)) for chosen in drawn]
    return Interval.of(statistic(counts.sum(axis=0)), values)
