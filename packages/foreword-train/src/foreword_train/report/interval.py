"""An estimate and its interval, by samples drawn with replacement."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from jaxtyping import Int

RESAMPLES = 2000
COVERAGE = 0.95
"""Probability that an interval holds the truth."""


@dataclass(frozen=True, slots=True)
class Interval:
    """An estimate and the ends of its 95 % interval."""

    low: float
    mid: float
    high: float

    @classmethod
    def of(cls, mid: float, resampled: Sequence[float] | np.ndarray) -> "Interval":
        """Return an estimate with the interval of its values on resampled data."""
        low, high = np.quantile(resampled, [(1 - COVERAGE) / 2, (1 + COVERAGE) / 2])
        return cls(float(low), float(mid), float(high))

    @property
    def ends(self) -> str:
        """The ends of the interval, as reports write them."""
        return f"{self.low:.2f}–{self.high:.2f}"

    @property
    def text(self) -> str:
        """The estimate and its interval, as reports write them."""
        return f"{self.mid:.2f} ({self.ends})"


def resamples(
    count: int, times: int = RESAMPLES, seed: int = 0
) -> Int[np.ndarray, "resample sample"]:
    """Return the indices of samples drawn with replacement (percentile bootstrap: Efron
    and Tibshirani 1993, chapters 8 and 13).
    """
    return np.random.default_rng(seed).integers(count, size=(times, count))
