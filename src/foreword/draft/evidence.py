"""The one check that every estimator makes before it learns: a number that is not finite would stay for ever.

Knows numbers; knows nothing about what is estimated.
"""

from __future__ import annotations

import math

OUTLIER = 4.0
"""Times as long as expected that one round counts at most: a machine that stalls once says little of the next round."""


def finite(*numbers: float) -> bool:
    """Whether an estimate may take these in: each is a number, and none is infinite.

    Estimates live across requests, so one NaN of one request would be part of every estimate for all others.
    """
    return all(map(math.isfinite, numbers))


def steadied(seen: float, expected: float) -> float:
    """What a clock showed, at most OUTLIER times what was expected; that itself where it showed no number.

    0 stands for nothing expected yet.
    """
    if not finite(seen):
        return expected
    return min(seen, OUTLIER * expected) if expected > 0 else seen
