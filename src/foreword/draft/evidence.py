"""The one check that every estimator makes before it learns: a number that is not finite would stay for ever.

Knows numbers; knows nothing about what is estimated.
"""

from __future__ import annotations

import math


def finite(*numbers: float) -> bool:
    """Whether an estimate may take these in: each is a number, and none is infinite.

    Estimates live across requests, so one NaN of one request would be part of every estimate for all others.
    """
    return all(map(math.isfinite, numbers))
