"""Batched benchmark: every method beside plain decoding, interleaved, by the number of
sequences in a batch.
"""

import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import asdict, dataclass, field
from itertools import product
from statistics import median
from time import sleep
from typing import Any

from rich.markup import escape

from foreword.budget import policy
from foreword.cli.common.tables import Column, Table, name_column, row_json
from foreword.errors import InvalidRequest
from foreword.native.machine import machine, versions
from foreword.prompts import load
from foreword_lab.bench.engine_entry import EngineEntry, Served
from foreword_lab.bench.exclusions import Exclusions, left_out
from foreword_lab.bench.lineup import OUTSIDE, PLAIN_ROW, Lineup, lineup
from foreword_lab.bench.oracle import NAME as ORACLE
from foreword_lab.bench.race import REST, rotated
from foreword_lab.bench.records import BenchRequest, EntryFailed
from foreword_lab.bench.row_names import row_names
from foreword_lab.bench.run import Options, check, measured_weights, rendered, spread
from foreword_lab.bench.stats import Interval, median_of

GAIN = 1.1
"""Times the speed of plain decoding, at least, whose gain beside another program is
compared: a share of a smaller gain would be noise.
"""


@dataclass(frozen=True, slots=True)
class Row:
    """One entry at one temperature and batch size."""

    name: str
    temperature: float
    beside: bool
    """Whether another program kept one core busy."""
    batch: int
    tokens_per_second: float
    """Median of the turns, from the first prompt to the last token, with prefill."""
    over_plain: Interval
    """Median of the ratios to plain decoding in the same turn."""
    drafted: int
    accepted: int
    same_text: bool
    """Whether every answer equals plain decoding's."""

    def below(self, least: Sequence[float]) -> bool:
        """Return whether the entry is slower than `least` times plain decoding: the
        first number alone, the last one beside another program.
        """
        if self.name == PLAIN_ROW:
            return False
        return self.over_plain.mid < (least[-1] if self.beside else least[0])

    @property
    def shown(self) -> str:
        """The row in words."""
        where = ", beside a busy program" if self.beside else ""
        return (
            f"{self.name} at temperature {self.temperature:g} in batches of "
            f"{self.batch}{where}: {self.over_plain.text}"
        )


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
        } | {"rows": rows, "kept_gains": self.kept_gains()}

    def kept_gains(self) -> list[float]:
        """Return the gain of each row beside another program over its gain alone, where
        that is at least GAIN.
        """
        alone = {_kind(row): row for row in self.rows if not row.beside}
        pairs = [(row, alone[_kind(row)]) for row in self.rows if row.beside]
        return [
            (row.over_plain.mid - 1) / (quiet.over_plain.mid - 1)
            for row, quiet in pairs
            if quiet.over_plain.mid >= GAIN
        ]

    def table(self) -> Table[dict[int, Row]]:
        """Return a table for the terminal, with a column for each batch size."""
        lines: dict[tuple[float, bool, str], dict[int, Row]] = {}
        for row in self.rows:
            key = row.temperature, row.beside, row.name
            lines.setdefault(key, {})[row.batch] = row
        busy = any(row.beside for row in self.rows)
        where = Column[dict[int, Row]]("beside", _beside)
        return Table(
            list(lines.values()),
            (
                name_column("method", lambda line: _first(line).name),
                Column("T", lambda line: f"{_first(line).temperature:g}"),
                *([where] if busy else []),
                *map(_column, dict.fromkeys(row.batch for row in self.rows)),
                Column("same text", _same),
            ),
            title=(
                f"{self.target}, {self.settings['prompts']} prompts, × plain decoding "
                "at the same batch size"
            ),
            caption=escape(
                "plain: tokens/s. Others: median of the turns' ratios, and its 95 % "
                "interval" + self._kept() + left_out(self.exclusions)
            ),
        )

    def _kept(self) -> str:
        gains = self.kept_gains()
        if not gains:
            return ""
        return f". Beside a busy program, at least {min(gains):.0%} of a gain is kept"


def _kind(row: Row) -> tuple[str, float, int]:
    return row.name, row.temperature, row.batch


def _column(batch: int) -> Column[dict[int, Row]]:
    def cell(line: dict[int, Row]) -> str:
        row = line[batch]
        plain = row.name == PLAIN_ROW
        return f"{row.tokens_per_second:,.0f}" if plain else row.over_plain.text

    return Column(str(batch), cell)


def _first(line: dict[int, Row]) -> Row:
    return next(iter(line.values()))


def _beside(line: dict[int, Row]) -> str:
    return "a busy program" if _first(line).beside else "nothing"


def _same(line: dict[int, Row]) -> str:
    return "yes" if all(row.same_text for row in line.values()) else "NO"


TURNS = 3
"""Minimum number of turns, so that an interval can be given."""
Place = tuple[float, bool, int]
"""Temperature, whether beside a busy program, batch size."""
Results = dict[tuple[Place, str], list[Served]]
"""One result for each turn, by place and entry."""


def together(
    options: Options,
    batches: Sequence[int],
    progress: Callable[[str], None] = lambda _: None,
    *,
    beside: bool = False,
) -> Together:
    """Answer all prompts at every batch size by every entry in turn; the order rotates.

    `beside`: measure beside a program that keeps one core busy as well, in each turn.
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
    plan = _plan(options, entrants, batches, busy=beside)
    results = _measure(ours, plan, out, progress)
    measured = [one.name for one in ours if one.name not in out]
    rows = [
        _row(name, (heat, busy, batch), results)
        for heat, busy, name, batch in product(
            options.temperatures, plan.neighbors, measured, batches
        )
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
    neighbors: tuple[bool, ...]
    """Whether another program keeps one core busy: no, or no and yes."""
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
            "beside": any(self.neighbors),
            "prompts": len(self.texts),
            "kind": self.options.prompts,
        }


def _plan(
    options: Options, entrants: Lineup, batches: Sequence[int], *, busy: bool = False
) -> _Plan:
    prompts = spread(load(options.prompts), options.limit)
    texts = [
        (prompt.id, rendered(prompt, entrants.tokenizer, entrants.context, options))
        for prompt in prompts
    ]
    neighbors = (False, True) if busy else (False,)
    turns = max(options.times, TURNS)
    return _Plan(options, texts, tuple(batches), neighbors, turns)


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
    heats = plan.options.temperatures
    for turn, heat, busy in product(turns, heats, plan.neighbors):
        requests = plan.requests(turn, heat)
        for batch in plan.batches:
            with busy_core() if busy else nullcontext():
                served = _serve(rotated(ours, turn), requests, batch, out)
            for name, result in served.items() if turn >= 0 else ():
                results.setdefault(((heat, busy, batch), name), []).append(result)
            where = ", beside a busy program" if busy else ""
            progress(
                f"turn {turn + 1} of {plan.turns}: temperature {heat:g}, batch of "
                f"{batch}{where}"
            )
    return results


def _serve(
    ours: Sequence[EngineEntry],
    requests: Sequence[BenchRequest],
    batch: int,
    out: Exclusions,
) -> dict[str, Served]:
    """Answer the requests by every entry that is not excluded."""
    served: dict[str, Served] = {}
    for entry in ours:
        if entry.name in out:
            continue
        sleep(REST)
        with out.unless(entry.name):
            served[entry.name] = entry.serve(requests, batch)
    return served


def _row(name: str, key: Place, results: Results) -> Row:
    mine, plain = results[key, name], results[key, PLAIN_ROW]
    heat, busy, batch = key
    pairs = list(zip(mine, plain, strict=True))
    return Row(
        name=name,
        temperature=heat,
        beside=busy,
        batch=batch,
        tokens_per_second=median(one.speed for one in mine),
        over_plain=median_of([one.speed / other.speed for one, other in pairs]),
        drafted=sum(one.drafted for one in mine),
        accepted=sum(one.accepted for one in mine),
        same_text=all(one.texts == other.texts for one, other in pairs),
    )


BUSY = """
import os, sys, threading

threading.Thread(target=lambda: (sys.stdin.read(), os._exit(0))).start()
print(flush=True)
while True:
    pass
"""
"""It says that it has begun, and computes until its input ends: also where the process
that started it is killed.
"""


@contextmanager
def busy_core() -> Iterator[None]:
    """Keep one core busy meanwhile, as another program would."""
    command = [sys.executable, "-c", BUSY]
    pipe = subprocess.PIPE
    with subprocess.Popen(command, stdin=pipe, stdout=pipe) as other:
        assert other.stdin is not None
        assert other.stdout is not None
        try:
            other.stdout.readline()
            yield
        finally:
            other.stdin.close()
