"""Cost of a pass of a measured pair, and the accepted shares by depth."""

from collections.abc import Sequence
from statistics import median

import numpy as np

from foreword.model.cost import Cost
from foreword.options import NODES
from foreword_lab.bench.records import Round
from foreword_lab.doctor.formulas import PassCost


def shares(sums: np.ndarray) -> np.ndarray:
    """Return accepted over tried draft tokens by depth; 0 where none was tried."""
    accepted = sums[:, 0]
    tried = sums[:, 1]
    return accepted / np.maximum(tried, 1)


def pass_cost(
    passes: Sequence[Round],
    scoring: Cost,
) -> tuple[PassCost, float]:
    """Return the cost of a pass, and the seconds of a step of plain decoding.

    Medians of passes with equally many draft tokens: a stall of the machine proves
    nothing. The cost of drafting is a line through them.
    """
    plain = [one.clock.score for one in passes if not one.drafted]
    step = median(plain) if plain else scoring(0)
    proposed: dict[int, list[float]] = {}
    for round_ in passes:
        if round_.drafted:
            proposed.setdefault(round_.drafted, []).append(round_.clock.propose)
    start, token = _line(proposed)
    rest = median([rest_of(one) for one in passes]) if passes else 0.0
    single = scoring(0)
    table = tuple(scoring(gamma) / single for gamma in range(NODES + 1))
    cost = PassCost(
        token=token / step,
        start=start / step,
        overhead=rest / step,
        scoring=table,
    )
    return cost, step


def rest_of(round_: Round) -> float:
    """Return the seconds of a round outside drafting and scoring."""
    return round_.clock.verify + round_.clock.commit


def _line(seconds: dict[int, list[float]]) -> tuple[float, float]:
    """Return start and slope, neither below 0, of a line through the medians, weighed
    by their number of passes.
    """
    if not seconds:
        return 0.0, 0.0
    sizes = np.array([*seconds], float)
    middles = np.array([median(times) for times in seconds.values()])
    weights = np.array([len(times) for times in seconds.values()], float)
    slope, start = 0.0, -1.0
    if len(sizes) > 1:
        slope, start = np.polyfit(sizes, middles, 1, w=np.sqrt(weights))
    total = weights @ middles
    if start < 0:
        return 0.0, float(total / (weights @ sizes))
    if slope < 0:
        return float(total / weights.sum()), 0.0
    return float(start), float(slope)
