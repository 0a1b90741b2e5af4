"""Batched benchmark: every method beside plain decoding, interleaved, by the number of
sequences in a batch.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from itertools import product
from statistics import median
from time import sleep
from typing import Any

from rich.markup import escape

from foreword.bench.engine_entry import EngineEntry, Served
from foreword.bench.exclusions import Exclusions, left_out
from foreword.bench.lineup import OUTSIDE, PLAIN_ROW, Lineup, lineup, row_names
from foreword.bench.machine import machine, versions
from foreword.bench.oracle import NAME as ORACLE
from foreword.bench.prompts import load
from foreword.bench.race import REST, rotated
from foreword.bench.records import BenchRequest, EntryFailed
from foreword.bench.roofline.timing import middle
from foreword.bench.run import Options, check, measured_weights, rendered, spread
from foreword.bench.stats import Interval
from foreword.budget import policy
from foreword.errors import InvalidRequest
from foreword.tables import Column, Table, name_column, row_json

TURNS = 3
"""Minimum number of turns, so that an interval can be given."""
Results = dict[tuple[float, int, str], list[Served]]
"""(temperature, batch size, entry) -> one result for each turn."""


@dataclass(frozen=True, slots=True)
class Row:
    """One entry at one temperature and batch size."""

    name: str
    temperature: float
    batch: int
    tokens_per_second: float
    """Median of the turns, from the first prompt to the last token, prefill
    included.
    """
    over_plain: Interval
    """Median of the ratios to plain decoding in the same turn."""
    drafted: int
    accepted: int
    same_text: bool
    """Whether every answer equals plain decoding's."""


@dataclass(frozen=True, slots=True)
class Together:
    """A finished run."""

    machine: dict[str, Any]
    versions: dict[str, str]
    target: str
    settings: dict[str, Any]
    rows: tuple[Row, ...]
    exclusions: dict[str, str] = field(default_factory=dict)

    def as_json(self) -> dict[str, Any]:
        """Return plain numbers, strings, lists and dicts; an interval is [low, mid,
        high].
        """
        rows = [row_json(row) for row in self.rows]
        return {
            name: getattr(self, name)
            for name in ("machine", "versions", "target", "settings", "exclusions")
        } | {"rows": rows}

    def table(self) -> Table[dict[int, Row]]:
        """Return a table for the terminal, with a column for each batch size."""
        lines: dict[tuple[float, str], dict[int, Row]] = {}
        for row in self.rows:
            lines.setdefault((row.temperature, row.name), {})[row.batch] = row
        return Table(
            list(lines.values()),
            (
                name_column("method", lambda line: _first(line).name),
                Column("T", lambda line: f"{_first(line).temperature:g}"),
                *map(_column, dict.fromkeys(row.batch for row in self.rows)),
                Column("same text", _same),
            ),
            title=(
                f"{self.target}, {self.settings['prompts']} prompts, × plain decoding "
                "at the same batch size"
            ),
            caption=escape(
                "plain: tokens/s. Others: median of the turns' ratios, and its 95 % "
                "interval" + left_out(self.exclusions)
            ),
        )


def together(
    options: Options,
    batches: Sequence[int],
    progress: Callable[[str], None] = lambda _: None,
) -> Together:
    """Answer all prompts at every batch size by every entry in turn; the order rotates.

    Entries that answer one request at a time are excluded. Raises InvalidRequest,
    UnknownMethod or ModelError before any measuring.
    """
    check(options)
    if not batches or min(batches) < 1:
        raise InvalidRequest(
            f"cannot measure batches of {list(batches)}: each needs at least one "
            "sequence. Give 1,4,16,32"
        )
    names = row_names(options.methods, options.quick, options.peers)
    source = measured_weights(options, names)
    out = Exclusions(progress, needed=PLAIN_ROW)
    batched = _without_single(names, out)
    progress(f"loading {source.name}")
    entrants = lineup(source, batched, out, progress, policy(options.budget))
    ours = [one for one in entrants.entries if isinstance(one, EngineEntry)]
    plan = _plan(options, entrants, batches)
    results = _measure(ours, plan, out, progress)
    measured = [one.name for one in ours if one.name not in out]
    rows = [
        _row(name, heat, batch, results)
        for heat, name, batch in product(options.temperatures, measured, batches)
    ]
    return Together(
        dict(machine(source.device)),
        dict(versions()),
        source.name,
        plan.settings(),
        tuple(rows),
        out.reasons,
    )


@dataclass(frozen=True, slots=True)
class _Plan:
    """What is served: the prompts in every turn, at each temperature and batch size."""

    options: Options
    texts: list[tuple[str, tuple[int, ...]]]
    """Id and tokens of each prompt."""
    batches: tuple[int, ...]
    turns: int

    def requests(self, turn: int, heat: float) -> list[BenchRequest]:
        """Return the requests of a turn, whose seeds no other turn has."""
        first = self.options.seed + (turn + 1) * len(self.texts)
        return [
            BenchRequest(name, tokens, heat, first + place, self.options.tokens)
            for place, (name, tokens) in enumerate(self.texts)
        ]

    def settings(self) -> dict[str, Any]:
        """Return the settings needed to repeat the run."""
        return asdict(self.options) | {
            "max_tokens": self.options.tokens,
            "repeats": self.turns,
            "batches": list(self.batches),
            "prompts": len(self.texts),
            "kind": self.options.prompts,
        }


def _plan(options: Options, entrants: Lineup, batches: Sequence[int]) -> _Plan:
    prompts = spread(load(options.prompts), options.limit)
    texts = [
        (prompt.id, rendered(prompt, entrants.tokenizer, entrants.context, options))
        for prompt in prompts
    ]
    return _Plan(options, texts, tuple(batches), max(options.times, TURNS))


def _without_single(names: Sequence[str], out: Exclusions) -> list[str]:
    """Exclude the entries that answer one request at a time; return the others."""
    single = [name for name in names if name in OUTSIDE]
    single += [ORACLE] if ORACLE in names else []
    for name in single:
        with out.unless(name):
            raise EntryFailed("it answers one request at a time here")
    return [name for name in names if name not in out]


def _measure(
    ours: Sequence[EngineEntry],
    plan: _Plan,
    out: Exclusions,
    progress: Callable[[str], None],
) -> Results:
    results: Results = {}
    turns = range(-1, plan.turns)  # the first is a warm-up and is not counted
    for turn, heat in product(turns, plan.options.temperatures):
        requests = plan.requests(turn, heat)
        for batch in plan.batches:
            for one in rotated(ours, turn):
                if one.name in out:
                    continue
                sleep(REST)
                with out.unless(one.name):
                    served = one.serve(requests, batch)
                    if turn >= 0:
                        results.setdefault((heat, batch, one.name), []).append(served)
            progress(
                f"turn {turn + 1} of {plan.turns}: temperature {heat:g}, batch of "
                f"{batch}"
            )
    return results


def _row(name: str, heat: float, batch: int, results: Results) -> Row:
    mine, plain = results[heat, batch, name], results[heat, batch, PLAIN_ROW]
    pairs = list(zip(mine, plain, strict=True))
    return Row(
        name=name,
        temperature=heat,
        batch=batch,
        tokens_per_second=median(one.speed for one in mine),
        over_plain=middle([one.speed / other.speed for one, other in pairs]),
        drafted=sum(one.drafted for one in mine),
        accepted=sum(one.accepted for one in mine),
        same_text=all(one.texts == other.texts for one, other in pairs),
    )


def _column(batch: int) -> Column[dict[int, Row]]:
    def cell(line: dict[int, Row]) -> str:
        row = line[batch]
        plain = row.name == PLAIN_ROW
        return f"{row.tokens_per_second:,.0f}" if plain else row.over_plain.text

    return Column(str(batch), cell)


def _first(line: dict[int, Row]) -> Row:
    return next(iter(line.values()))


def _same(line: dict[int, Row]) -> str:
    return "yes" if all(row.same_text for row in line.values()) else "NO"
