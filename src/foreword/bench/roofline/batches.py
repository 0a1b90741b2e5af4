"""Batched forwards over one token per sequence, against the memory-bandwidth limit;
weights are read once per batch.
"""

from __future__ import annotations

from dataclasses import dataclass
from statistics import median
from typing import Any

from foreword.bench.roofline.timing import Memory, seconds, turns
from foreword.bench.stats import Interval, median_of
from foreword.model import Model, Read

BATCHES = (1, 2, 4, 8, 16, 32, 64)
FIRST = 100
"""Id of the first sequence."""


@dataclass(frozen=True, slots=True)
class BatchPass:
    """Forwards over one token of each of `batch` sequences."""

    batch: int
    ms: Interval
    """Median, and its 95 % interval by the bootstrap."""
    share_of_floor: float
    """Time of reading the weights and all keys at the measured bandwidth, divided by
    the median time.
    """
    cost_over_one: float
    """Median of the ratios to the forward at the first batch size, in the same turn."""

    @property
    def shown(self) -> str:
        """What the forward scores, as the table calls it."""
        return f"1 of {self.batch}"

    def as_json(self) -> dict[str, Any]:
        """Return plain numbers."""
        return {
            "batch": self.batch,
            "ms": self.ms.mid,
            "ms_interval": [self.ms.low, self.ms.high],
            "share_of_floor": self.share_of_floor,
            "cost_over_one": self.cost_over_one,
        }


def curve(
    model: Model,
    sizes: tuple[int, int],
    context: int,
    batches: tuple[int, ...],
    spend: float,
) -> tuple[BatchPass, ...]:
    """Measure forwards over 1 token of `batches` sequences after `context` tokens,
    interleaved for `spend` seconds.

    `sizes` are the bytes of the weights, and of the keys of one sequence, that a pass
    reads.
    """
    ids = [token % model.vocab for token in range(7, 8 + context)]
    sequences = range(FIRST, FIRST + max(batches))
    memory, readings = Memory(model.device), []
    times: dict[int, list[float]] = {batch: [] for batch in batches}
    try:
        for sequence in sequences:
            model.open(sequence, len(ids))
            model.read([Read(sequence, 0, ids[:context], keep=0)])
        reads = [Read(sequence, context, ids[context:]) for sequence in sequences]
        for batch in batches:  # warm-up, not counted
            seconds(model, reads[:batch])
        for _ in turns(spend):
            readings.append(memory())
            for batch in batches:
                times[batch].append(seconds(model, reads[:batch]))
    finally:
        for sequence in sequences:
            model.close(sequence)
    weights, keys = sizes
    return tuple(
        BatchPass(
            batch,
            median_of([1e3 * spent for spent in times[batch]]),
            (weights + batch * keys) / max(readings) / median(times[batch]),
            median(
                spent / one
                for spent, one in zip(times[batch], times[batches[0]], strict=True)
            ),
        )
        for batch in batches
    )
