"""What a forward costs by the rows it reads and the text before them: measured on the model, kept on disk.

Knows clocks and files; knows nothing about drafting.
"""

from __future__ import annotations

import json
import math
from bisect import bisect_left
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass
from hashlib import sha256
from itertools import cycle, islice
from pathlib import Path
from statistics import median
from time import perf_counter
from typing import Any, Protocol, runtime_checkable

import torch

from foreword.disk import cache, replacing
from foreword.model.driver import Driver, Mode
from foreword.model.plan import Read
from foreword.native.openmp import threads
from foreword.native.processor import processor

NEAR, FAR = 128, 1024
"""Tokens of context that forwards are measured after."""
POINTS = (
    (1, NEAR), (2, NEAR), (1, FAR), (4, NEAR), (8, NEAR), (16, NEAR), (16, FAR), (12, NEAR), (32, NEAR), (64, NEAR),
)  # fmt: skip
"""(rows, context) of the forwards, in the order in which they are done without when time runs out, last first.

The line bends after 12 rows, where the C forward begins to go over its weights twice.
"""
TURNS = 12
PROMPT = 16
"""Tokens that are really read; the context is made of copies of their keys, which cost what any others do."""
HASTE = 0.7
"""A forward that takes less than this share of what a table says proves the table wrong."""
PROBE_ID = -1
"""The id of the sequence that is measured; no request has it."""


@runtime_checkable
class Readable(Protocol):
    """A model, as far as its forwards go."""

    driver: Driver
    vocab: int
    context: int


@dataclass(frozen=True, slots=True)
class Cost:
    """Seconds of a forward, from a table: linear between the measured numbers of rows and in the length of the text."""

    seconds: Mapping[int, float]
    """By the rows of one sequence, `context` tokens after its beginning."""
    context: int
    per_token: float = 0.0
    """Seconds for each further token of context of a sequence: its keys and values are read."""
    per_token_and_row: float = 0.0
    """The same for each row that looks at it: products."""

    def __post_init__(self) -> None:
        above, least = (*self.seconds, *self.seconds.values()), (self.per_token, self.per_token_and_row, self.context)
        if not above or not all(map(math.isfinite, (*above, *least))) or min(above) <= 0 or min(least) < 0:
            raise ValueError("a cost needs at least one width, and numbers that seconds can be")

    def __call__(self, nodes: int, rows: int = 1, context: int | None = None) -> float:
        """Seconds of one forward in which `rows` sequences of `context` tokens have `nodes` guesses checked each."""
        context = self.context if context is None else context
        read = rows * (1 + nodes)
        base = self._of(read)
        text = self.per_token * (rows * context - self.context)
        return max(base + text + self.per_token_and_row * read * (context - self.context), 0.1 * base)

    def _of(self, rows: int) -> float:
        widths = sorted(self.seconds)
        if len(widths) == 1 or rows in self.seconds:
            return self.seconds.get(rows, self.seconds[widths[0]])
        at = min(max(bisect_left(widths, rows), 1), len(widths) - 1)
        low, high = widths[at - 1], widths[at]
        slope = (self.seconds[high] - self.seconds[low]) / (high - low)
        return max(self.seconds[low] + slope * (rows - low), 0.1 * self.seconds[low])


@runtime_checkable
class Priced(Protocol):
    """What knows the cost of its forwards."""

    @property
    def cost(self) -> Cost: ...


def measure(model: Priced) -> dict[int, float]:
    """Seconds of a forward by the rows it reads."""
    return dict(model.cost.seconds)


def measured(model: Readable, *, seconds: float = 2.0) -> Cost:
    """Time forwards over 1, 2, 4 … 64 rows, turn by turn, for about `seconds` at most.

    The median of each counts. The least would be nearer to an idle machine, but not in proportion: one lucky forward
    of one row makes all others look dear, and it is by proportions that guesses are weighed.
    Fewer widths, and no term for the context, where time or room runs out or the model's keys cannot be copied.
    """
    points = POINTS if model.driver.mode is not Mode.PLAIN else POINTS[:1]
    times: dict[tuple[int, int], list[float]] = {}
    started, probe = perf_counter(), _Probe(model)
    try:
        for point in points:
            if probe.fits(*point) and (not times or perf_counter() - started < seconds / 3):
                times[point] = [probe(*point)]
        for turn in range(TURNS):
            spent = perf_counter() - started
            if spent >= (0.3 if turn > 2 else 0.6) * seconds or not all(probe.fits(*point) for point in times):
                break
            for point, found in times.items():
                found.append(probe(*point))
    finally:
        model.driver.close(PROBE_ID)
    return _fitted({point: median(found) for point, found in times.items()}, probe.near)


def known(model: Readable, about: Mapping[str, Any], folder: Path | None = None) -> Cost:
    """What was measured before on this machine for a model that is `about` the same, or is measured now and kept.

    A file that cannot be read, or that is about something else, is as good as none; so is a folder nobody may write.
    """
    key = json.loads(json.dumps({**_machine(), **about}, sort_keys=True, default=str))
    digest = sha256(json.dumps(key, sort_keys=True).encode()).hexdigest()[:16]
    found = None
    with suppress(OSError):
        folder = folder or cache() / "costs"
        found = _read(folder / f"{digest}.json", key)
    if found is None or _outdone(found, model):
        found = measured(model)
        with suppress(OSError):
            _write((folder or cache() / "costs") / f"{digest}.json", {"key": key, **asdict(found)})
    return found


def _outdone(found: Cost, model: Readable) -> bool:
    """The machine is far faster than the table says, which was made while it did other things."""
    probe = _Probe(model)
    try:
        tried = [probe(1, NEAR) for _ in range(4) if probe.fits(1, NEAR)]
    finally:
        model.driver.close(PROBE_ID)
    return bool(tried) and min(tried) < HASTE * found.seconds[min(found.seconds)]


class _Probe:
    """A sequence that is read for the clock alone."""

    def __init__(self, model: Readable) -> None:
        self._driver, self._context = model.driver, model.context
        copies = self._copies = model.driver.copies
        self._tokens = [token % model.vocab for token in range(7, 7 + 64)]
        self.near = min(NEAR if copies else PROMPT, model.context // 2)
        far = FAR if copies and model.context >= FAR + 64 else 0
        on = 0 if copies else (1 + TURNS) * len(POINTS)  # tokens that stay, one a forward
        self._driver.open(PROBE_ID, max(far, self.near) + on + 64)
        prompt = self._held = min(PROMPT, self.near)
        self._driver.read([Read(PROBE_ID, 0, self._tokens[:prompt], keep=0)])
        if copies:
            filled = max(far, self.near)
            self._driver.move(PROBE_ID, list(islice(cycle(range(prompt)), filled - prompt)), prompt)

    def fits(self, rows: int, context: int) -> bool:
        """There is room for such a forward."""
        return (self.near if context == NEAR else context) + rows <= self._context and (
            self._copies or (context == NEAR and self._held + rows <= self._context)
        )

    def __call__(self, rows: int, context: int) -> float:
        """Seconds of one forward."""
        past = self.near if context == NEAR else context
        if not self._copies:  # some models cannot go back: one after the other, as if every guess were wrong
            past, self._held = self._held, self._held + 1
        before = perf_counter()
        self._driver.read([Read(PROBE_ID, past, self._tokens[:rows], keep=rows)])[0, 0].item()  # wait for the device
        return perf_counter() - before


def _fitted(times: Mapping[tuple[int, int], float], near: int) -> Cost:
    """A table that never falls, as more rows cannot cost less, and from the slopes of 1 and 16 rows its other terms."""
    near_ones = sorted(rows for rows, context in times if context == NEAR)
    table = {rows: min(times[wider, NEAR] for wider in near_ones if wider >= rows) for rows in near_ones}
    one, sixteen = (
        max(times[rows, FAR] - table[rows], 0.0) / (FAR - near) if (rows, FAR) in times else 0.0 for rows in (1, 16)
    )
    products = max(sixteen - one, 0.0) / 15
    return Cost(table, near, max(one - products, 0.0), products)


def _machine() -> dict[str, Any]:
    import foreword  # the package says its version, and imports this file before it does

    return {
        "cpu": processor(),
        "threads": threads(),
        "torch": torch.__version__,
        "foreword": foreword.__version__,
    }


def _read(file: Path, key: Mapping[str, Any]) -> Cost | None:
    try:
        held = json.loads(file.read_text(encoding="utf-8"))
        if held.pop("key") != key:
            return None
        held["seconds"] = {int(rows): float(seconds) for rows, seconds in held["seconds"].items()}
        return Cost(**held)
    except (OSError, ValueError, TypeError, KeyError, AttributeError, OverflowError, RecursionError):
        return None


def _write(file: Path, table: Mapping[str, Any]) -> None:
    with replacing(file) as made:
        made.write_text(json.dumps(table, indent=1) + "\n", encoding="utf-8")
