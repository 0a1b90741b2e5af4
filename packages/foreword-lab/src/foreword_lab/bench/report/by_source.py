"""Speeds by kind of prompt: which method pays where."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from foreword.cli.common.tables import Column, Table
from foreword_lab.bench.lineup import OUTSIDE, PLAIN_ROW
from foreword_lab.bench.records import Results, costs_of, source_of
from foreword_lab.bench.stats import Interval, speedup

SHOWN = 5
"""Methods in the table; the JSON has all."""


@dataclass(frozen=True, slots=True)
class BySource:
    """Speeds over plain decoding on the prompts of one source."""

    source: str
    temperature: float
    prompts: int
    speedups: Mapping[str, Interval]
    """By row, in the order of the report."""

    @property
    def fastest(self) -> str:
        """Return the fastest row; plain decoding where every method loses."""
        best = max(self.speedups, key=lambda name: self.speedups[name].mid)
        return best if self.speedups[best].mid > 1 else PLAIN_ROW


def by_source(results: Results) -> tuple[BySource, ...]:
    """Return the speeds of our methods by source of prompts, if there are several."""
    rows = []
    for temperature in dict.fromkeys(heat for _, heat in results):
        plain = results[PLAIN_ROW, temperature]
        sources = dict.fromkeys(map(source_of, plain))
        ours = {
            name: trials
            for (name, heat), trials in results.items()
            if heat == temperature and name not in (PLAIN_ROW, *OUTSIDE)
        }
        if len(sources) < 2 or not ours:
            continue
        for source in sources:
            base = costs_of(plain, source)
            speedups = {
                name: speedup(costs_of(trials, source), base)
                for name, trials in ours.items()
            }
            rows.append(BySource(source, temperature, len(base), speedups))
    return tuple(rows)


def table_of(rows: Sequence[BySource]) -> Table[BySource] | None:
    """Return a table of a few methods; first the one that is fastest most often."""
    if not rows:
        return None
    names = list(rows[0].speedups)
    wins = [one.fastest for one in rows]
    names.sort(key=lambda name: -wins.count(name))
    columns = (
        Column[BySource]("kind", lambda row: row.source, justify="left"),
        Column[BySource]("T", lambda row: f"{row.temperature:g}"),
        Column[BySource]("prompts", lambda row: str(row.prompts)),
        *(_speed_column(name) for name in names[:SHOWN]),
        Column[BySource]("fastest", lambda row: row.fastest),
    )
    return Table(rows, columns, title="× plain, by kind of prompt")


def _speed_column(name: str) -> Column[BySource]:
    def cell(row: BySource) -> str:
        speed = row.speedups[name]
        return f"{speed.mid:.2f}" if row.prompts == 1 else speed.text

    return Column(name, cell)
