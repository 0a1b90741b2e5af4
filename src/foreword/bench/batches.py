"""Forwards over one token of each of many texts, beside the limit of the memory: the weights are read once for all.

Knows forwards and bytes; knows nothing about drafting or prompts.
"""

from __future__ import annotations

from dataclasses import dataclass
from statistics import median
from typing import Any

from foreword.bench.clock import Memory, middle, seconds, turns
from foreword.bench.stats import Interval
from foreword.model import Model, Read

BATCHES = (1, 2, 4, 8, 16, 32, 64)
FIRST = 100
"""The id of the first text."""


@dataclass(frozen=True, slots=True)
class Beside:
    """Forwards over one token of `batch` texts."""

    batch: int
    ms: Interval
    """Median, and its 95 % interval by the bootstrap."""
    share_of_floor: float
    """The time that reading the weights, and the keys of all texts, takes at the measured bandwidth, over this."""
    cost_over_one: float
    """Median of the ratios to the forward over one text of the same turn."""

    def as_json(self) -> dict[str, Any]:
        """Plain numbers."""
        return {
            "batch": self.batch,
            "ms": self.ms.mid,
            "ms_interval": [self.ms.low, self.ms.high],
            "share_of_floor": self.share_of_floor,
            "cost_over_one": self.cost_over_one,
        }


def curve(
    model: Model, sizes: tuple[int, int], context: int, wanted: tuple[int, ...], spend: float
) -> tuple[Beside, ...]:
    """Forwards over 1 token of each of `wanted` texts after `context` tokens, turn by turn for `spend` seconds.

    `sizes` are the bytes of weights, and of the keys of one text, that a pass reads.
    """
    ids = [token % model.vocab for token in range(7, 8 + context)]
    texts = range(FIRST, FIRST + max(wanted))
    memory, readings = Memory(model.device), []
    times: dict[int, list[float]] = {batch: [] for batch in wanted}
    try:
        for text in texts:
            model.open(text, len(ids))
            model.read([Read(text, 0, ids[:context], keep=0)])
        reads = [Read(text, context, ids[context:]) for text in texts]
        for batch in wanted:  # a turn that finds everything cold, and is not counted
            seconds(model, reads[:batch])
        for _ in turns(spend):
            readings.append(memory())
            for batch in wanted:
                times[batch].append(seconds(model, reads[:batch]))
    finally:
        for text in texts:
            model.close(text)
    weights, keys = sizes
    return tuple(
        Beside(
            batch,
            middle([1e3 * spent for spent in times[batch]]),
            (weights + batch * keys) / max(readings) / median(times[batch]),
            median(spent / one for spent, one in zip(times[batch], times[wanted[0]], strict=True)),
        )
        for batch in wanted
    )
