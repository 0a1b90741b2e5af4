"""Simulates one load on several numbers of replicas."""

import math
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from foreword.cli.common.tables import Column, Table
from foreword.errors import InvalidRequest
from foreword_lab.bench.stats import percentiles
from foreword_lab.simulate.cluster import Cluster, Outcome
from foreword_lab.simulate.costs import ReplicaCosts
from foreword_lab.simulate.load import Load

MOST = 100_000
"""Replicas that are simulated at most."""

Progress = Callable[[int, int], None]
"""Called with the requests that are over, of all rows, and their total."""


def simulate(
    costs: ReplicaCosts,
    load: Load,
    replicas: Sequence[int] = (1,),
    measured: int = 1,
    *,
    shown: dict[str, Any] | None = None,
    progress: Progress = lambda *_: None,
) -> "SimulationReport":
    """Simulate a load on each number of replicas.

    `measured`: replicas that ran when the costs were measured; `shown`: the load in
    words. Raises InvalidRequest for numbers of replicas that cannot be simulated.
    """
    if not replicas or not all(1 <= one <= MOST for one in (*replicas, measured)):
        raise InvalidRequest(
            f"cannot simulate {list(replicas)} replicas, measured with {measured}: "
            f"each must be from 1 to {MOST}. Give 1,2,4"
        )
    each = len(load.requests)
    total = each * len(replicas)
    rows: list[Row] = []
    for number, count in enumerate(replicas):
        before = number * each
        cluster = Cluster(costs, load, count)
        outcome = cluster.run(
            lambda done, before=before: progress(before + done, total)
        )
        rows.append(row(load, outcome, count, measured))
    described = {"requests": each, "seed": load.seed}
    return SimulationReport(costs, (shown or {}) | described, measured, tuple(rows))


PERCENTILES = (50, 95, 99)
MILLI = 1000
MISSING = "–"

Spread = tuple[float | None, ...]
"""The PERCENTILES of a time, in seconds; None where no answer has it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One number of replicas under the load."""

    replicas: int
    extrapolated: bool
    """Whether these are more replicas than the costs were measured with."""
    seconds: float
    """From the first request to the last token."""
    tokens_per_second: float
    client_tokens_per_second: float | None
    """Tokens of an answer over its time, the median."""
    first_token: Spread
    """From the request to the first token."""
    per_token: Spread
    """Time of each token after the first, one value an answer."""
    answer: Spread
    """From the request to the last token."""
    utilisation: float
    """Share of the time that a replica spends in rounds, on average."""
    answers: int
    refused: int
    """Requests that got status 429."""
    tokens: int
    rounds: int


def row(load: Load, outcome: Outcome, replicas: int, measured: int) -> Row:
    """Return the figures of one simulation."""
    pairs = zip(load.requests, outcome.times, strict=True)
    answered = [pair for pair in pairs if not pair[1].refused]
    sent = [one.sent for one in outcome.times]
    ends = [times.last for _, times in answered]
    seconds = max(ends, default=min(sent)) - min(sent)
    tokens = sum(request.answer_tokens for request, _ in answered)
    waits = [times.first - times.sent for _, times in answered]
    spans = [times.last - times.sent for _, times in answered]
    speeds = [
        request.answer_tokens / span
        for (request, _), span in zip(answered, spans, strict=True)
    ]
    further = [
        (times.last - times.first) / (request.answer_tokens - 1)
        for request, times in answered
        if request.answer_tokens > 1
    ]
    return Row(
        replicas=replicas,
        extrapolated=replicas > measured,
        seconds=seconds,
        tokens_per_second=tokens / seconds if seconds else 0.0,
        client_tokens_per_second=percentiles(speeds, PERCENTILES)[0],
        first_token=percentiles(waits, PERCENTILES),
        per_token=percentiles(further, PERCENTILES),
        answer=percentiles(spans, PERCENTILES),
        utilisation=outcome.busy / (replicas * seconds) if seconds else 0.0,
        answers=len(answered),
        refused=len(outcome.times) - len(answered),
        tokens=tokens,
        rounds=outcome.rounds,
    )


@dataclass(frozen=True, slots=True)
class SimulationReport:
    """A finished simulation."""

    costs: ReplicaCosts
    load: dict[str, Any]
    """The load in words."""
    measured: int
    """Replicas that ran when the costs were measured."""
    rows: tuple[Row, ...]

    def as_json(self) -> dict[str, Any]:
        """Return plain numbers, strings, lists and dicts."""
        return {
            "costs": self.costs.as_json(),
            "load": self.load,
            "measured": self.measured,
            "percentiles": list(PERCENTILES),
            "rows": [asdict(one) for one in self.rows],
        }

    def table(self) -> Table[Row]:
        """Return a table for the terminal."""
        shares = "/".join(map(str, PERCENTILES))
        caption = f"ms: percentiles {shares}; all figures are simulated"
        if any(one.extrapolated for one in self.rows):
            caption += (
                "\nextrapolated: costs were measured with "
                f"{self.measured} replica{'s' if self.measured > 1 else ''}"
            )
        return Table(self.rows, COLUMNS, title=_titled(self.load), caption=caption)


def _titled(load: dict[str, Any]) -> str:
    parts = [
        f"{name.replace('_', ' ')} {value}"
        for name, value in load.items()
        if value is not None
    ]
    return ", ".join(parts)


def _milli(values: Spread) -> str:
    return "/".join(MISSING if one is None else _short(MILLI * one) for one in values)


def _short(value: float) -> str:
    """Return three digits of a number, or all digits before its point."""
    if value == 0:
        return "0"
    digits = 2 - math.floor(math.log10(abs(value)))
    return f"{value:,.{max(0, digits)}f}"


def _speed(value: float | None) -> str:
    return MISSING if value is None else _short(value)


COLUMNS: tuple[Column[Row], ...] = (
    Column("replicas", lambda row: f"{row.replicas:,}"),
    Column(
        "costs",
        lambda row: "extrapolated" if row.extrapolated else "measured",
        justify="left",
    ),
    Column("tokens/s", lambda row: _short(row.tokens_per_second)),
    Column("a client", lambda row: _speed(row.client_tokens_per_second)),
    Column("first token, ms", lambda row: _milli(row.first_token)),
    Column("a token, ms", lambda row: _milli(row.per_token[:2])),
    Column("answer, ms", lambda row: _milli(row.answer[:2])),
    Column("busy", lambda row: f"{row.utilisation:.0%}"),
    Column("refused", lambda row: f"{row.refused:,}"),
    Column("rounds", lambda row: f"{row.rounds:,}"),
)
