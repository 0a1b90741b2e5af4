"""Many texts at a time: every method beside plain decoding, turn by turn, by how many texts share a forward.

Knows the order of things and what to make of the figures; knows nothing about how a contender works.
"""

from __future__ import annotations

from collections.abc import Callable
from collections.abc import Sequence as List
from dataclasses import asdict, dataclass, field, replace
from statistics import median
from time import sleep
from typing import Any

from rich.box import SIMPLE_HEAD
from rich.markup import escape
from rich.table import Table

from foreword.bench.clock import middle
from foreword.bench.contender import EngineContender, Served
from foreword.bench.leftout import LeftOut
from foreword.bench.lineup import OUTSIDE, PLAIN_ROW, lineup, wanted, weights
from foreword.bench.machine import machine, versions
from foreword.bench.oracle import NAME as ORACLE
from foreword.bench.prompts import load
from foreword.bench.race import REST
from foreword.bench.run import Options, check, rendered, sources, spread
from foreword.bench.stats import Interval
from foreword.bench.trial import Request
from foreword.errors import DraftError, InvalidRequest
from foreword.width import policy

TURNS = 3
"""At least so many, for an interval."""


@dataclass(frozen=True, slots=True)
class Row:
    """One contender at one temperature with so many texts at a time."""

    name: str
    temperature: float
    batch: int
    tokens_per_second: float
    """Median of the turns, from the first prompt to the last token, the reading of prompts included."""
    over_plain: Interval
    """Median of the ratios to plain decoding in the same turn."""
    drafted: int
    accepted: int
    same_text: bool
    """Every answer equals plain decoding's."""


@dataclass(frozen=True, slots=True)
class Together:
    """A finished run."""

    machine: dict[str, Any]
    versions: dict[str, str]
    target: str
    settings: dict[str, Any]
    rows: tuple[Row, ...]
    left_out: dict[str, str] = field(default_factory=dict)

    def as_json(self) -> dict[str, Any]:
        """Plain numbers, strings, lists and dicts; an interval is [low, mid, high]."""
        rows = [
            asdict(row) | {"over_plain": [row.over_plain.low, row.over_plain.mid, row.over_plain.high]}
            for row in self.rows
        ]
        return {name: getattr(self, name) for name in ("machine", "versions", "target", "settings", "left_out")} | {
            "rows": rows
        }

    def table(self) -> Table:
        """For the terminal: a column for each number of texts."""
        batches = list(dict.fromkeys(row.batch for row in self.rows))
        left = "".join(f"\nleft out: {name} ({why})" for name, why in self.left_out.items())
        table = Table(
            title=f"{self.target}, {self.settings['prompts']} prompts, × plain decoding of as many texts at a time",
            caption=escape("plain: tokens/s. Others: median of the turns' ratios, and its 95 % interval" + left),
            box=SIMPLE_HEAD,
            padding=(0, 1, 0, 0),
            pad_edge=False,
        )
        table.add_column("method", no_wrap=True)
        for head in ("T", *map(str, batches), "same text"):
            table.add_column(head, justify="right")
        for key in dict.fromkeys((row.temperature, row.name) for row in self.rows):
            mine = [row for row in self.rows if (row.temperature, row.name) == key]
            same = "yes" if all(row.same_text for row in mine) else "NO"
            table.add_row(key[1], f"{key[0]:g}", *map(_cell, mine), same)
        return table


def together(asked: Options, batches: List[int], progress: Callable[[str], None] = lambda _: None) -> Together:
    """Answer all prompts, so many at a time, by every contender in turn; the order rotates.

    Raises InvalidRequest, UnknownMethod or ModelError before any measuring. Who answers one request at a time is left
    out by name.
    """
    check(asked)
    if not batches or min(batches) < 1:
        raise InvalidRequest(f"cannot measure batches of {list(batches)}: each needs at least one text. Give 1,4,16,32")
    names = wanted(asked.methods, asked.quick, asked.peers)
    source = weights(asked.target, asked.draft, asked.dtype, asked.inflate)
    source = replace(source, sources=sources(asked.sources, names))
    out = LeftOut(progress, needed=PLAIN_ROW)
    for name in (*(name for name in names if name in OUTSIDE), *((ORACLE,) if ORACLE in names else ())):
        with out.unless(name):
            raise DraftError("it answers one request at a time here")
    progress(f"loading {source.name}")
    entrants = lineup(source, [name for name in names if name not in out], out, progress, policy(asked.width))
    ours = [one for one in entrants.contenders if isinstance(one, EngineContender)]
    prompts = spread(load(asked.prompts), asked.limit)
    texts = [rendered(prompt, entrants.tokenizer, entrants.context, asked) for prompt in prompts]
    turns, found = max(asked.times, TURNS), dict[tuple[float, int, str], list[Served]]()
    for turn in range(-1, turns):  # the first warms up, and is not counted
        for heat in asked.temperatures:
            seeds = range(asked.seed + (turn + 1) * len(texts), asked.seed + (turn + 2) * len(texts))
            requests = [
                Request(prompt.id, tokens, heat, seed, asked.tokens)
                for prompt, tokens, seed in zip(prompts, texts, seeds, strict=True)
            ]
            for batch in batches:
                for one in [*ours[turn % len(ours) :], *ours[: turn % len(ours)]]:
                    if one.name in out:
                        continue
                    sleep(REST)
                    with out.unless(one.name):
                        served = one.serve(requests, batch)
                        if turn >= 0:
                            found.setdefault((heat, batch, one.name), []).append(served)
                progress(f"turn {turn + 1} of {turns}: temperature {heat:g}, {batch} texts at a time")
    settings = asdict(asked) | {"max_tokens": asked.tokens, "repeats": turns, "batches": list(batches)}
    settings |= {"prompts": len(texts), "kind": asked.prompts}
    rows = [
        _row(one.name, heat, batch, found)
        for heat in asked.temperatures
        for one in ours
        if one.name not in out
        for batch in batches
    ]
    return Together(dict(machine()), dict(versions()), source.name, settings, tuple(rows), out.reasons)


def _row(name: str, heat: float, batch: int, found: dict[tuple[float, int, str], list[Served]]) -> Row:
    mine, plain = found[heat, batch, name], found[heat, batch, PLAIN_ROW]
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


def _cell(row: Row) -> str:
    if row.name == PLAIN_ROW:
        return f"{row.tokens_per_second:,.0f}"
    ratio = row.over_plain
    return f"{ratio.mid:.2f} ({ratio.low:.2f}–{ratio.high:.2f})"
