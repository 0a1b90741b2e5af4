"""Metrics of a trained draft with intervals: acceptance by depth, domain by domain."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from foreword.types.stats import Stats
from foreword_train.report.interval import Interval, resamples

RESAMPLES = 1000
ALL = "all"
"""Name of all domains together."""


@dataclass(frozen=True, slots=True)
class Metrics:
    """Metrics of one domain at one temperature."""

    domain: str
    temperature: float
    prompts: int
    tokens_per_pass: Interval
    acceptance: tuple[Interval, ...]
    """Share of draft tokens accepted at depth 1, 2, …, of rounds that had one."""


@dataclass(frozen=True, slots=True)
class TrainReport:
    """Settings and results of a training."""

    target: str | None
    """None = the bundled target."""
    settings: dict[str, Any]
    versions: dict[str, str]
    parameters: int
    learnt: int
    """Tokens trained on, counted each time."""
    held_out: dict[str, float]
    """Last metrics on held-out data, computed on given text."""
    metrics: tuple[Metrics, ...]

    def as_json(self) -> dict[str, Any]:
        """Return plain values."""
        return asdict(self)

    @classmethod
    def from_json(cls, values: dict[str, Any]) -> "TrainReport":
        """Return the report of such values."""
        rows = list[Metrics]()
        for row in values["metrics"]:
            passes = Interval(**row["tokens_per_pass"])
            depths = tuple(Interval(**depth) for depth in row["acceptance"])
            fields = dict[str, Any](row, tokens_per_pass=passes, acceptance=depths)
            rows.append(Metrics(**fields))
        return cls(**dict[str, Any](values, metrics=tuple(rows)))


def summary(
    domain: str, temperature: float, stats: Sequence[Stats], depth: int
) -> Metrics:
    """Return metrics of answers, with bootstrap intervals."""

    def padded(counts: list[int]) -> list[int]:
        return [*counts, *[0] * depth][:depth]

    ratio = np.array([[one.tokens, one.rounds] for one in stats], dtype=np.float64)
    accepted = np.array([padded(one.accepted_at) for one in stats], dtype=np.float64)
    tried = np.array([padded(one.drafted_at) for one in stats], dtype=np.float64)
    return Metrics(
        domain,
        temperature,
        len(stats),
        interval(ratio[:, 0], ratio[:, 1]),
        tuple(
            interval(accepted[:, place], tried[:, place])
            for place in range(depth)
            if tried[:, place].any()
        ),
    )


def interval(above: np.ndarray, below: np.ndarray, seed: int = 0) -> Interval:
    """Return sum over sum, float64 [answer], with its 95 % bootstrap interval."""
    drawn = resamples(len(above), RESAMPLES, seed)
    sums, counts = above[drawn].sum(1), below[drawn].sum(1)
    ratios = np.divide(
        sums,
        counts,
        out=np.full_like(sums, above.sum() / below.sum()),
        where=counts > 0,
    )
    return Interval.of(above.sum() / below.sum(), ratios)
