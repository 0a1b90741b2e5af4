"""Results of a load measurement as rows, JSON and a table."""

from dataclasses import asdict, dataclass
from itertools import chain
from statistics import median
from typing import Any, TypeAlias

from rich.markup import escape

from foreword.cli.common.tables import Column, Table, figure, name_column
from foreword_lab.bench.exclusions import left_out
from foreword_lab.bench.report import held_line
from foreword_lab.bench.serving.load import Load
from foreword_lab.bench.serving.servers import OURS, PLAIN
from foreword_lab.bench.stats import percentiles

IN_PROCESS = "foreword, no HTTP"
"""The row of the LLM in this process, at concurrency 1."""
SAME = (OURS, PLAIN, IN_PROCESS)
"""Rows whose texts must all be equal, at any temperature."""
MILLI = 1000
PERCENTILES = (50, 95)
Results: TypeAlias = dict[tuple[float, str, int], list[Load]]
"""(temperature, name, concurrency) -> the load of each turn."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One server at one temperature and concurrency, over all turns. Seconds."""

    name: str
    temperature: float
    concurrency: int
    tokens_per_second: float
    """Median of the turns."""
    over_plain: float | None
    """Ratio to our server without drafting; None where that failed."""
    over_in_process: float | None
    """Our server at concurrency 1: ratio to the same requests without HTTP."""
    first_token: tuple[float | None, ...]
    """Percentiles 50 and 95 of the time to the first text."""
    per_token: tuple[float | None, ...]
    """Percentiles 50 and 95 of the time per token after the first, by answer."""
    gap: tuple[float | None, ...]
    """Percentiles 50 and 95 of the longest time between two texts, one value an
    answer: what a long prompt beside it costs a stream.
    """
    tokens: int
    cached_tokens: int
    accepted: int
    """Draft tokens accepted, where the server reports them."""
    failures: tuple[str, ...]
    differing: int | None
    """Answers that are not our plain server's at the first concurrency; None for
    sampled ones of other engines.
    """


@dataclass(frozen=True, slots=True)
class ServingReport:
    """A finished run."""

    machine: dict[str, Any]
    versions: dict[str, str]
    target: str
    settings: dict[str, Any]
    rows: tuple[Row, ...]
    exclusions: dict[str, str]

    def as_json(self) -> dict[str, Any]:
        """Return plain numbers, strings, lists and dicts."""
        return asdict(self)

    def table(self) -> Table[Row]:
        """Return a table for the terminal."""
        ratios = [
            f"\n{row.name}: {row.over_in_process:.2f} × the speed without HTTP (T = "
            f"{row.temperature:g}, one client)"
            for row in self.rows
            if row.over_in_process is not None
        ]
        caption = (
            "ms: median / 95th percentile. differ: answers that are not plain "
            "decoding's, one at a time"
        )
        held = held_line(self.settings["held"])
        return Table(
            self.rows,
            COLUMNS,
            title=f"{self.target}, {self.settings['requests']} requests per load",
            caption=escape(
                caption + "".join(ratios) + held + left_out(self.exclusions)
            ),
        )


def rows(results: Results) -> tuple[Row, ...]:
    """Return a row for each temperature, server and concurrency."""
    return tuple(
        _row(results, *key)
        for key in sorted(
            results, key=lambda key: (key[0], key[2], list(results).index(key))
        )
    )


def _row(results: Results, heat: float, name: str, many: int) -> Row:
    loads = results[heat, name, many]
    sent = chain.from_iterable(load.answers for load in loads)
    answers = [one for one in sent if one is not None]
    further = [one.per_token for one in answers if one.per_token is not None]
    plain = results.get((heat, PLAIN, many), [])
    bare = results.get((heat, IN_PROCESS, many), []) if name == OURS else []
    return Row(
        name=name,
        temperature=heat,
        concurrency=many,
        tokens_per_second=_speed(loads),
        over_plain=_speed(loads) / _speed(plain) if _speed(plain) else None,
        over_in_process=_speed(loads) / _speed(bare) if _speed(bare) else None,
        first_token=percentiles([one.first_token for one in answers], PERCENTILES),
        per_token=percentiles(further, PERCENTILES),
        gap=percentiles([one.gap for one in answers], PERCENTILES),
        tokens=sum(one.tokens for one in answers),
        cached_tokens=sum(one.cached for one in answers),
        accepted=sum(one.accepted for one in answers),
        failures=tuple(why for load in loads for why in load.failures),
        differing=_differing(results, heat, loads)
        if name in SAME or heat == 0
        else None,
    )


def _differing(results: Results, heat: float, loads: list[Load]) -> int:
    """Count answers with another text than our plain server's first ones; failed
    answers are counted as failures.
    """
    fewest = min(many for at, name, many in results if (at, name) == (heat, PLAIN))
    expected = results[heat, PLAIN, fewest][0].texts
    pairs = [pair for load in loads for pair in zip(load.texts, expected, strict=True)]
    return sum(
        mine != other for mine, other in pairs if mine is not None and other is not None
    )


def _speed(loads: list[Load]) -> float:
    return median(load.tokens_per_second for load in loads) if loads else 0.0


def _times(values: tuple[float | None, ...]) -> str:
    return " / ".join(
        "–" if value is None else f"{MILLI * value:.1f}" for value in values
    )


COLUMNS: tuple[Column[Row], ...] = (
    name_column("server", lambda row: row.name),
    Column("T", lambda row: f"{row.temperature:g}"),
    Column("clients", lambda row: str(row.concurrency)),
    Column("tokens/s", lambda row: f"{row.tokens_per_second:,.0f}"),
    Column("× none", lambda row: figure(row.over_plain, missing="–")),
    Column("first, ms", lambda row: _times(row.first_token)),
    Column("a token, ms", lambda row: _times(row.per_token)),
    Column("longest gap, ms", lambda row: _times(row.gap)),
    Column("cached", lambda row: str(row.cached_tokens)),
    Column("failed", lambda row: str(len(row.failures))),
    Column("differ", lambda row: figure(row.differing, 0, missing="–")),
)
