"""Measures the cost of forwards, once for a model on a machine."""

from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from statistics import median
from time import perf_counter

from foreword.model.backend import Backend, Mode
from foreword.model.cost import BATCH, POINTS, TURNS, WIDE, Cost, Point, Probe

BUSY = 0.25
"""Seconds of waiting by second: two threads had up to 0.11 alone on two cores, and 1.1
beside one other program, where forwards took two to four times as long.
"""


def measured(
    backend: Backend, vocab: int, context: int, *, seconds: float = 2.0
) -> Cost:
    """Time forwards over 1, 2, 4 … 64 rows, in turns, for about `seconds` at most;
    return the fitted cost.

    Each point counts its median. The minimum would be nearer to an idle machine, but
    would distort the ratios that decide on budgets: one fast forward of one row makes
    all others look expensive. Fewer points are measured, and context costs are left
    out, where time or room runs out or keys cannot be copied.
    """
    points = POINTS if backend.mode is not Mode.PLAIN else POINTS[:1]
    times: dict[Point, list[float]] = {}
    started, waited = perf_counter(), threads_waited()
    probe = Probe(backend, vocab, context)
    try:
        for point in points:
            spent = perf_counter() - started
            has_time = not times or spent < seconds / 3
            if has_time and probe.fits(point):
                times[point] = [probe(point)]
        alone = len(times) == 1 < len(points)
        if alone and times[points[0]][0] > seconds / 3 > 0:
            for point in map(Point, WIDE):
                if probe.fits(point):
                    times[point] = [probe(point)]
        for turn in range(TURNS):
            spent = perf_counter() - started
            share = 0.3 if turn > 2 else 0.6
            if spent >= share * seconds:
                break
            if not probe.fits_all(times):
                break
            for point, samples in times.items():
                samples.append(probe(point))
    finally:
        probe.close()
    took = perf_counter() - started
    waited = threads_waited() - waited
    cost = fitted(times, probe.near, probe.far)
    return replace(cost, waited=max(waited / took, 0.0))


def threads_waited(tasks: Path = Path("/proc/self/task")) -> float:
    """Return the seconds that threads of this process could run and had no core; 0
    where the system does not tell.
    """
    nanoseconds = 0
    for file in tasks.glob("*/schedstat"):
        with suppress(OSError, ValueError, IndexError):  # a thread has ended
            counts = file.read_text(encoding="ascii").split()
            nanoseconds += int(counts[1])
    return nanoseconds / 1e9


def fitted(times: Mapping[Point, Sequence[float]], near: int, far: int) -> Cost:
    """Return a cost whose table never falls with rows; its context terms come from the
    slopes of 1 and 16 rows, and the term of a batch from one row of each sequence.

    The fastest forwards are compared for slopes: a difference of medians is mostly
    noise where other programs run.
    """
    medians = {point: median(samples) for point, samples in times.items()}
    fastest = {point: min(samples) for point, samples in times.items()}
    alone = sorted(one for one in times if one == Point(one.rows))
    table = {}
    for point in alone:
        wider = [one for one in alone if one >= point]
        table[point.rows] = min(medians[one] for one in wider)
    slopes = {1: 0.0, 16: 0.0}  # seconds per token of context, by rows
    for rows in slopes:
        point = Point(rows, is_far=True)
        if point in times:
            more = fastest[point]
            more -= fastest[Point(rows)]
            more = max(more, 0.0)
            slopes[rows] = more / (far - near)
    slope, wide_slope = slopes.values()
    products = max(wide_slope - slope, 0.0) / 15
    slope = max(slope - products, 0.0)
    cost = Cost(table, near, slope, products)
    together = Point(1, sequences=BATCH)
    if together not in times or Point(BATCH) not in times:
        return cost
    keys = cost.per_token * near * (BATCH - 1)
    more = fastest[together] - fastest[Point(BATCH)]
    more -= keys
    each = max(more, 0.0) / (BATCH - 1)
    return replace(cost, per_sequence=each)
