"""What a forward costs by the number of rows it reads, measured on the model itself.

Knows clocks; knows nothing about drafting.
"""

from __future__ import annotations

from statistics import median
from time import perf_counter

from foreword.model.driver import Mode
from foreword.model.model import Model
from foreword.model.plan import Read

WIDTHS = (1, 2, 4, 8, 16, 32)
REPEATS = 4
PROBE_ID = -1
"""The id of the sequence that is measured; no request has it."""


def measure(model: Model, *, context: int = 128, seconds: float = 2.0) -> dict[int, float]:
    """Median seconds of a forward over 1, 2, 4 … rows after `context` tokens; fewer widths if time or room runs out."""
    context = min(context, model.context // 2)
    text = [token % model.vocab for token in range(7, 7 + context + REPEATS * sum(WIDTHS))]
    model.open(PROBE_ID, len(text))
    cost: dict[int, float] = {}
    started, past = perf_counter(), context
    try:
        model.read([Read(PROBE_ID, 0, text[:context], keep=0)])
        for width in WIDTHS if model.mode is not Mode.PLAIN else WIDTHS[:1]:
            if cost and (perf_counter() - started > seconds or past + REPEATS * width > model.context):
                break
            times = []
            for _ in range(REPEATS):  # one after the other, as if all were kept: some models cannot go back
                before = perf_counter()
                model.read([Read(PROBE_ID, past, text[past : past + width], keep=width)])
                times.append(perf_counter() - before)
                past += width
            cost[width] = median(times[1:])
    finally:
        model.close(PROBE_ID)
    return cost
