"""What was measured of a pair beside what the formulas say of it."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from functools import partial
from statistics import median
from typing import Any

import numpy as np

from foreword.errors import InvalidRequest
from foreword.model.cost import Cost
from foreword.options import NODES
from foreword_lab.bench.records import Round
from foreword_lab.bench.stats import Interval, over_prompts, speedup
from foreword_lab.theory.formulas import (
    PassCost,
    expected_tokens,
    speed_up,
    tokens_by_depth,
)
from foreword_lab.theory.outlook import Outlook
from foreword_lab.theory.rounds import LONGEST, Answers


@dataclass(frozen=True, slots=True)
class Point:
    """Passes of one number of draft tokens."""

    gamma: int
    formula: float
    """Expected tokens of a pass by equation 1."""
    tokens: Interval
    """Measured tokens of a pass, ends of answers left out."""
    error: Interval
    """formula / measured − 1, α measured anew in each resample."""
    theorem: float
    """Speed-up by theorem 3.8: equation 1, and scoring that costs one row."""
    with_scoring: float
    """Speed-up by equation 1 and the measured cost of a pass."""
    with_tokens: float
    """Speed-up by the measured tokens and the measured cost of a pass."""
    speed: Interval | None
    """Speed-up of the clock; None if no answer had a second pass."""


@dataclass(frozen=True, slots=True)
class HeatReport:
    """One temperature."""

    temperature: float
    alpha: Interval
    """Share of first draft tokens accepted, in passes of one draft token."""
    by_depth: tuple[float, ...]
    """Share accepted at each depth if the depth before was, in the longest passes."""
    after_rejection: Interval
    """Error of equation 1 for the longest passes, with α the share of their own first
    draft tokens, which mostly follow a rejection.
    """
    cost: PassCost
    step: float
    """Seconds. Scoring one row in plain decoding: the unit of `cost`."""
    points: tuple[Point, ...]

    @property
    def theorem(self) -> Outlook:
        """Outlook of theorem 3.8."""
        return Outlook(self.alpha.mid, PassCost(token=self.cost.token))

    @property
    def outlook(self) -> Outlook:
        """Outlook with the measured cost of a pass."""
        return Outlook(self.alpha.mid, self.cost)

    def as_json(self) -> dict[str, Any]:
        """Return plain numbers, lists and dicts."""
        return {
            "temperature": self.temperature,
            "alpha": asdict(self.alpha),
            "alpha_by_depth": list(self.by_depth),
            "error_with_alpha_after_rejection": asdict(self.after_rejection),
            "step_ms": 1000 * self.step,
            "points": [asdict(point) for point in self.points],
            "theorem_3_8": self.theorem.as_json(),
            "with_measured_cost": self.outlook.as_json(),
        }


@dataclass(frozen=True, slots=True)
class TheoryReport:
    """All temperatures of a pair."""

    target: str
    method: str
    prompts: int
    settings: dict[str, Any]
    machine: dict[str, Any]
    heats: tuple[HeatReport, ...]

    def as_json(self) -> dict[str, Any]:
        """Return plain numbers, strings, lists and dicts."""
        return {
            "target": self.target,
            "method": self.method,
            "prompts": self.prompts,
            "settings": self.settings,
            "machine": self.machine,
            "temperatures": [heat.as_json() for heat in self.heats],
        }


def summarize(answers: Answers, temperature: float, scoring: Cost) -> HeatReport:
    """Return the report of the answers; `scoring`: the target's measured forwards.

    Raises InvalidRequest if no draft token was scored.
    """
    counts = answers.counts()
    if not counts[:, 1, 0, 1].sum():
        raise InvalidRequest(
            "cannot measure acceptance: no draft token was scored. Choose another "
            "'--method' or '--draft', or prompts it drafts for"
        )
    alpha = over_prompts(counts, _alpha)
    cost, step = pass_cost(answers.decoding(), scoring)
    sums = counts.sum(axis=0)
    reached = [
        gamma for gamma in range(1, LONGEST + 1) if sums[gamma, gamma - 1, 1] > 0
    ]
    depths = tuple(shares(sums[reached[-1]])[: reached[-1]].tolist())
    times = answers.times()
    points = [_point(gamma, counts, times, alpha.mid, cost) for gamma in reached]
    after = over_prompts(counts, partial(_error_after_rejection, reached[-1]))
    return HeatReport(temperature, alpha, depths, after, cost, step, tuple(points))


def _point(
    gamma: int, counts: np.ndarray, times: np.ndarray, alpha: float, cost: PassCost
) -> Point:
    formula = expected_tokens(alpha, gamma)
    tokens = over_prompts(counts, partial(_tokens, gamma))
    return Point(
        gamma,
        formula,
        tokens,
        over_prompts(counts, partial(_error, gamma)),
        theorem=speed_up(formula, gamma, PassCost(token=cost.token)),
        with_scoring=speed_up(formula, gamma, cost),
        with_tokens=speed_up(tokens.mid, gamma, cost),
        speed=speedup(times[:, gamma], times[:, 0]) if len(times) else None,
    )


def _alpha(sums: np.ndarray) -> float:
    """Return the accepted share of first draft tokens in passes of one draft token."""
    return float(shares(sums[1])[0])


def _tokens(gamma: int, sums: np.ndarray) -> float:
    return tokens_by_depth(shares(sums[gamma])[:gamma].tolist())


def _error(gamma: int, sums: np.ndarray) -> float:
    return expected_tokens(_alpha(sums), gamma) / _tokens(gamma, sums) - 1


def _error_after_rejection(gamma: int, sums: np.ndarray) -> float:
    first = float(shares(sums[gamma])[0])
    return expected_tokens(first, gamma) / _tokens(gamma, sums) - 1


def shares(sums: np.ndarray) -> np.ndarray:
    """Return accepted over tried draft tokens by depth; 0 where none was tried."""
    accepted, tried = sums[:, 0], sums[:, 1]
    return accepted / np.maximum(tried, 1)


def pass_cost(passes: Sequence[Round], scoring: Cost) -> tuple[PassCost, float]:
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
    table = tuple(scoring(gamma) / scoring(0) for gamma in range(NODES + 1))
    cost = PassCost(
        token=token / step, start=start / step, overhead=rest / step, scoring=table
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
    if start < 0:
        return 0.0, float(weights @ middles / (weights @ sizes))
    if slope < 0:
        return float(weights @ middles / weights.sum()), 0.0
    return float(start), float(slope)
