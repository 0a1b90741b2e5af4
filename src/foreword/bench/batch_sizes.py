"""Batched benchmark: every method beside plain decoding, interleaved, by the number of
sequences in a batch.
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

from foreword.bench.engine_entry import EngineEntry, Served
from foreword.bench.exclusions import Exclusions
from foreword.bench.lineup import OUTSIDE, PLAIN_ROW, lineup, row_names, weights
from foreword.bench.machine import machine, versions
from foreword.bench.oracle import NAME as ORACLE
from foreword.bench.prompts import load
from foreword.bench.race import REST
from foreword.bench.records import Request
from foreword.bench.roofline.timing import middle
from foreword.bench.run import Options, check, rendered, sources, spread
from foreword.bench.stats import Interval
from foreword.budget import policy
from foreword.errors import DraftError, InvalidRequest

TURNS = 3
"""Minimum number of turns, so that an interval can be given."""


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
        rows = [
            asdict(row)
            | {
                "over_plain": [
                    row.over_plain.low,
                    row.over_plain.mid,
                    row.over_plain.high,
                ]
            }
            for row in self.rows
        ]
        return {
            name: getattr(self, name)
            for name in ("machine", "versions", "target", "settings", "exclusions")
        } | {"rows": rows}

    def table(self) -> Table:
        """Return a table for the terminal, with a column for each batch size."""
        batches = list(dict.fromkeys(row.batch for row in self.rows))
        left = "".join(
            f"\nleft out: {name} ({why})" for name, why in self.exclusions.items()
        )
        table = Table(
            title=(
                f"{self.target}, {self.settings['prompts']} prompts, × plain decoding "
                "at the same batch size"
            ),
            caption=escape(
                "plain: tokens/s. Others: median of the turns' ratios, and its 95 % "
                "interval" + left
            ),
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


def together(
    options: Options,
    batches: List[int],
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
    source = weights(
        options.target,
        options.draft,
        options.dtype,
        options.inflate,
        trusted=options.trust_remote_code,
    )
    source = replace(
        source, sources=sources(options.sources, names), form=options.weights
    )
    out = Exclusions(progress, needed=PLAIN_ROW)
    for name in (
        *(name for name in names if name in OUTSIDE),
        *((ORACLE,) if ORACLE in names else ()),
    ):
        with out.unless(name):
            raise DraftError("it answers one request at a time here")
    progress(f"loading {source.name}")
    entrants = lineup(
        source,
        [name for name in names if name not in out],
        out,
        progress,
        policy(options.budget),
    )
    ours = [one for one in entrants.entries if isinstance(one, EngineEntry)]
    prompts = spread(load(options.prompts), options.limit)
    texts = [
        rendered(prompt, entrants.tokenizer, entrants.context, options)
        for prompt in prompts
    ]
    turns = max(options.times, TURNS)
    results = dict[tuple[float, int, str], list[Served]]()
    for turn in range(-1, turns):  # the first is a warm-up and is not counted
        for heat in options.temperatures:
            seeds = range(
                options.seed + (turn + 1) * len(texts),
                options.seed + (turn + 2) * len(texts),
            )
            requests = [
                Request(prompt.id, tokens, heat, seed, options.tokens)
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
                            results.setdefault((heat, batch, one.name), []).append(
                                served
                            )
                progress(
                    f"turn {turn + 1} of {turns}: temperature {heat:g}, batch of "
                    f"{batch}"
                )
    settings = asdict(options) | {
        "max_tokens": options.tokens,
        "repeats": turns,
        "batches": list(batches),
    }
    settings |= {"prompts": len(texts), "kind": options.prompts}
    measured = [one for one in ours if one.name not in out]
    rows = [
        _row(one.name, heat, batch, results)
        for heat in options.temperatures
        for one in measured
        for batch in batches
    ]
    return Together(
        dict(machine()),
        dict(versions()),
        source.name,
        settings,
        tuple(rows),
        out.reasons,
    )


def _row(
    name: str,
    heat: float,
    batch: int,
    results: dict[tuple[float, int, str], list[Served]],
) -> Row:
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


def _cell(row: Row) -> str:
    if row.name == PLAIN_ROW:
        return f"{row.tokens_per_second:,.0f}"
    ratio = row.over_plain
    return f"{ratio.mid:.2f} ({ratio.low:.2f}–{ratio.high:.2f})"
