"""How far a method that chooses among others stays behind the best of them."""

from collections.abc import Mapping
from dataclasses import dataclass

from foreword.registry import AUTO
from foreword_lab.bench.lineup import OUTSIDE
from foreword_lab.bench.oracle import NAME as ORACLE
from foreword_lab.bench.records import Results, Trial, costs_of, source_of
from foreword_lab.bench.stats import speed, speedup


@dataclass(frozen=True, slots=True)
class Regret:
    """How far a row that chooses among methods stays behind the best of them."""

    name: str
    temperature: float
    best: str
    """The fastest of the other rows of ours, known in hindsight."""
    share: tuple[float, float, float]
    """(low, mid, high) share of the time that this row would have saved."""
    by_source: Mapping[str, float]
    """The same against the fastest row of each source of prompts."""

    @property
    def sentence(self) -> str:
        """Say it in a line."""
        low, mid, high = self.share
        return (
            f"{self.name} at T = {self.temperature:g}: {mid:.1%} ({low:.1%} to "
            f"{high:.1%}) slower than {self.best}, the fastest here in hindsight"
        )


def regrets(results: Results) -> tuple[Regret, ...]:
    """Return the regret of each row of `auto` that was measured beside others."""
    rows = []
    for name, temperature in results:
        others = {
            other: trials
            for (other, heat), trials in results.items()
            if heat == temperature and other not in (name, ORACLE, *OUTSIDE)
        }
        if name.startswith(AUTO) and others:
            mine = results[name, temperature]
            rows.append(_regret(name, temperature, mine, others))
    return tuple(rows)


def _regret(
    name: str,
    temperature: float,
    mine: dict[str, list[Trial]],
    others: Mapping[str, dict[str, list[Trial]]],
) -> Regret:
    best = max(others, key=lambda other: speed(costs_of(others[other])))
    ratio = speedup(costs_of(mine), costs_of(others[best]))
    by_source = {}
    for source in dict.fromkeys(source_of(prompt) for prompt in mine):
        fastest = max(speed(costs_of(one, source)) for one in others.values())
        by_source[source] = 1 - speed(costs_of(mine, source)) / fastest
    share = (1 - ratio.high, 1 - ratio.mid, 1 - ratio.low)
    return Regret(name, temperature, best, share, by_source)
