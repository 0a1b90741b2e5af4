"""Provides the cost model of forwards: seconds by rows and context, measured on the
model and cached on disk.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from itertools import cycle, islice
from pathlib import Path
from statistics import median
from time import perf_counter
from typing import Any, Protocol, runtime_checkable

import torch

from foreword.files import CachedValues
from foreword.model.backend import Backend, Encodes, Mode
from foreword.model.pool.plan import Read
from foreword.native.cpu import processor
from foreword.native.openmp import threads

NEAR, FAR = 128, 1024
"""Tokens. Context lengths at which forwards are measured."""
POINTS = (
    (1, NEAR),
    (2, NEAR),
    (1, FAR),
    (4, NEAR),
    (8, NEAR),
    (16, NEAR),
    (16, FAR),
    (12, NEAR),
    (32, NEAR),
    (64, NEAR),
)
"""(rows, context) of the measured forwards, most important first; the last are dropped
when time runs out.

The cost curve bends after 12 rows, where the C forward begins to go over its weights
twice.
"""
WIDE = (64, 256)
"""Rows.

Measured once instead of the other points when a forward is slow (offloaded weights).
"""
TURNS = 12
"""Measurements of each point, at most, after the first."""
PROMPT = 16
"""Tokens that are really read; the context is made of copies of their keys, which cost
the same.
"""
STALE = 0.7
"""Share.

A forward faster than this times its table entry marks the table as outdated.
"""
PROBE_ID = -1
"""Id of the measured sequence; no request has it."""


@runtime_checkable
class Readable(Protocol):
    """A model whose forwards can be timed."""

    backend: Backend
    vocab: int
    context: int


@dataclass(frozen=True, slots=True)
class Cost:
    """Seconds of a forward: a table interpolated linearly in the number of rows, and
    linear in the context length.
    """

    seconds: Mapping[int, float]
    """Seconds by number of rows of one sequence, after `context` tokens."""
    context: int
    per_token: float = 0.0
    """Seconds for each further token of context of a sequence: reading its keys and
    values.
    """
    per_token_and_row: float = 0.0
    """The same for each row that attends to it: products."""

    def __post_init__(self) -> None:
        above = (*self.seconds, *self.seconds.values())
        least = (self.per_token, self.per_token_and_row, self.context)
        if (
            not above
            or not all(map(math.isfinite, (*above, *least)))
            or min(above) <= 0
            or min(least) < 0
        ):
            raise ValueError(
                "a cost needs at least one number of rows, and finite seconds that are "
                "not negative"
            )

    def __call__(self, nodes: int, rows: int = 1, context: int | None = None) -> float:
        """Return the seconds of a forward over `nodes` draft tokens for each of `rows`
        sequences of `context`.
        """
        context = self.context if context is None else context
        read = rows * (1 + nodes)
        base = self._of(read)
        extra = self.per_token * (rows * context - self.context)
        return max(
            base + extra + self.per_token_and_row * read * (context - self.context),
            0.1 * base,
        )

    def _of(self, rows: int) -> float:
        points = sorted(self.seconds)
        if len(points) == 1 or rows in self.seconds:
            return self.seconds.get(rows, self.seconds[points[0]])
        at = min(max(bisect_left(points, rows), 1), len(points) - 1)
        low, high = points[at - 1], points[at]
        slope = (self.seconds[high] - self.seconds[low]) / (high - low)
        return max(self.seconds[low] + slope * (rows - low), 0.1 * self.seconds[low])


@runtime_checkable
class Priced(Protocol):
    """A model with a cost model."""

    @property
    def cost(self) -> Cost: ...


def measure(model: Priced) -> dict[int, float]:
    """Return the measured seconds of a forward by number of rows."""
    return dict(model.cost.seconds)


def measured(model: Readable, *, seconds: float = 2.0) -> Cost:
    """Time forwards over 1, 2, 4 … 64 rows, in turns, for about `seconds` at most;
    return the fitted cost.

    Each point counts its median. The minimum would be nearer to an idle machine, but
    would distort the ratios that decide on budgets: one fast forward of one row makes
    all others look expensive. Fewer points are measured, and context costs are left
    out, where time or room runs out or keys cannot be copied.
    """
    points = POINTS if model.backend.mode is not Mode.PLAIN else POINTS[:1]
    times: dict[tuple[int, int], list[float]] = {}
    started, probe = perf_counter(), _Probe(model)
    try:
        for point in points:
            if probe.fits(*point) and (
                not times or perf_counter() - started < seconds / 3
            ):
                times[point] = [probe(*point)]
        alone = len(times) == 1 < len(points)
        if alone and times[points[0]][0] > seconds / 3 > 0:
            for rows in WIDE:
                if probe.fits(rows, NEAR):
                    times[rows, NEAR] = [probe(rows, NEAR)]
        for turn in range(TURNS):
            spent = perf_counter() - started
            if spent >= (0.3 if turn > 2 else 0.6) * seconds or not probe.fits_all(
                times
            ):
                break
            for point, samples in times.items():
                samples.append(probe(*point))
    finally:
        model.backend.close(PROBE_ID)
    medians = {point: median(samples) for point, samples in times.items()}
    return _fitted(medians, probe.near)


def known(
    model: Readable, about: Mapping[str, Any], folder: Path | None = None
) -> Cost:
    """Return the cost that was cached on this machine under the key `about`; if there
    is none, measure and cache it.
    """
    cached = CachedValues("costs", {**machine(), **about}, folder)
    cost = _restored(cached.read())
    if cost is None or _outdated(cost, model):
        cost = measured(model)
        cached.write(asdict(cost))
    return cost


def _outdated(cost: Cost, model: Readable) -> bool:
    """Return whether the machine is far faster than the table, which was then measured
    under load.
    """
    probe = _Probe(model)
    try:
        samples = [probe(1, NEAR) for _ in range(4) if probe.fits(1, NEAR)]
    finally:
        model.backend.close(PROBE_ID)
    return bool(samples) and min(samples) < STALE * cost.seconds[min(cost.seconds)]


class _Probe:
    """A sequence that is read only to time forwards."""

    def __init__(self, model: Readable) -> None:
        self._backend, self._context = model.backend, model.context
        copies = self._copies = model.backend.copies
        self._tokens = [token % model.vocab for token in range(7, 7 + WIDE[-1])]
        self.near = min(NEAR if copies else PROMPT, model.context // 2)
        far = FAR if copies and model.context >= FAR + 64 else 0
        # tokens that stay, one a forward
        kept = 0 if copies else (1 + TURNS) * len(POINTS)
        self._backend.open(PROBE_ID, max(far, self.near) + kept + WIDE[-1])
        if isinstance(self._backend, Encodes):
            self._backend.encode(PROBE_ID, self._backend.probe_source)
        prompt = self._held = min(PROMPT, self.near)
        self._backend.read([Read(PROBE_ID, 0, self._tokens[:prompt], keep=0)])
        if copies:
            filled = max(far, self.near)
            source = list(islice(cycle(range(prompt)), filled - prompt))
            self._backend.move(PROBE_ID, source, prompt)

    def fits(self, rows: int, context: int) -> bool:
        """Return whether there is room for such a forward."""
        start = self.near if context == NEAR else context
        if start + rows > self._context:
            return False
        # without copies of keys, each forward adds a token to the context
        held = context == NEAR and self._held + rows <= self._context
        return self._copies or held

    def fits_all(self, points: Iterable[tuple[int, int]]) -> bool:
        """Return whether there is room for all these forwards, (rows, context), one
        after the other.
        """
        return all(
            self.fits(rows + at * (not self._copies), context)
            for at, (rows, context) in enumerate(points)
        )

    def __call__(self, rows: int, context: int) -> float:
        """Return the seconds of one forward."""
        past = self.near if context == NEAR else context
        # without rollback: go on by one token a forward, as if every draft token were
        # rejected
        if not self._copies:
            past, self._held = self._held, self._held + 1
        read = Read(PROBE_ID, past, self._tokens[:rows], keep=rows)
        before = perf_counter()
        logits = self._backend.read([read])
        logits[0, 0].item()  # wait for the device
        return perf_counter() - before


def _fitted(times: Mapping[tuple[int, int], float], near: int) -> Cost:
    """Return a cost whose table never falls with rows; its context terms come from the
    slopes of 1 and 16 rows.
    """
    near_ones = sorted(rows for rows, context in times if context == NEAR)
    table = {
        rows: min(times[wider, NEAR] for wider in near_ones if wider >= rows)
        for rows in near_ones
    }
    slopes = {1: 0.0, 16: 0.0}  # seconds per token of context, by rows
    for rows in slopes:
        if (rows, FAR) in times:
            slopes[rows] = max(times[rows, FAR] - table[rows], 0.0) / (FAR - near)
    one, sixteen = slopes.values()
    products = max(sixteen - one, 0.0) / 15
    return Cost(table, near, max(one - products, 0.0), products)


def machine() -> dict[str, Any]:
    """Return the properties of this machine that the speed of a forward depends on."""
    import foreword  # the package imports this file before it defines its version

    return {
        "cpu": processor(),
        "threads": threads(),
        "torch": torch.__version__,
        "foreword": foreword.__version__,
    }


def _restored(table: Mapping[str, Any] | None) -> Cost | None:
    """Return the cost of a cached table; None if it is damaged."""
    if table is None:
        return None
    try:
        seconds = {int(rows): float(one) for rows, one in table["seconds"].items()}
        return Cost(**{**table, "seconds": seconds})
    except (ValueError, TypeError, KeyError, AttributeError, OverflowError):
        return None
