"""Batched benchmark: every method beside plain decoding, interleaved, by the number of
sequences in a batch.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import asdict, dataclass
from itertools import product
from statistics import median
from time import sleep
from typing import Any

from foreword.bench.batches.beside import busy_core
from foreword.bench.batches.rows import Row, Together
from foreword.bench.engine_entry import EngineEntry, Served
from foreword.bench.exclusions import Exclusions
from foreword.bench.lineup import OUTSIDE, PLAIN_ROW, Lineup, lineup, row_names
from foreword.bench.machine import machine, versions
from foreword.bench.oracle import NAME as ORACLE
from foreword.bench.prompts import load
from foreword.bench.race import REST, rotated
from foreword.bench.records import BenchRequest, EntryFailed
from foreword.bench.roofline.timing import middle
from foreword.bench.run import Options, check, measured_weights, rendered, spread
from foreword.budget import policy
from foreword.errors import InvalidRequest

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
    plan = _plan(options, entrants, batches, beside=beside)
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
    options: Options, entrants: Lineup, batches: Sequence[int], *, beside: bool = False
) -> _Plan:
    prompts = spread(load(options.prompts), options.limit)
    texts = [
        (prompt.id, rendered(prompt, entrants.tokenizer, entrants.context, options))
        for prompt in prompts
    ]
    neighbors = (False, True) if beside else (False,)
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
            for name, one in served.items() if turn >= 0 else ():
                results.setdefault(((heat, busy, batch), name), []).append(one)
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
    for one in ours:
        if one.name in out:
            continue
        sleep(REST)
        with out.unless(one.name):
            served[one.name] = one.serve(requests, batch)
    return served


def _row(name: str, place: Place, results: Results) -> Row:
    mine, plain = results[place, name], results[place, PLAIN_ROW]
    heat, busy, batch = place
    pairs = list(zip(mine, plain, strict=True))
    return Row(
        name=name,
        temperature=heat,
        beside=busy,
        batch=batch,
        tokens_per_second=median(one.speed for one in mine),
        over_plain=middle([one.speed / other.speed for one, other in pairs]),
        drafted=sum(one.drafted for one in mine),
        accepted=sum(one.accepted for one in mine),
        same_text=all(one.texts == other.texts for one, other in pairs),
    )
