"""Prompts that a model reads, against what the machine allows."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median
from time import perf_counter
from typing import Any

from foreword.bench.roofline.roof import Roof
from foreword.bench.stats import Interval, median_of
from foreword.model import Model, Read

PROMPTS = (128, 512, 2048)
"""Tokens of the prompts."""
TIMES = 3
"""Readings of each prompt; one takes seconds."""
CHUNK = 512
"""Tokens of a prompt that one forward reads, as in serving."""
SEQUENCE = 0


@dataclass(frozen=True, slots=True)
class PromptPass:
    """The forwards that read a prompt, up to its first logits."""

    tokens: int
    ms: Interval
    """Median, and its 95 % interval by the bootstrap."""
    share_of_floor: float
    """Least time of the forwards, divided by the median time."""

    @property
    def shown(self) -> str:
        """What is read, as the table calls it."""
        return f"prompt of {self.tokens}"

    @property
    def tokens_per_second(self) -> float:
        """Speed of reading."""
        return 1e3 * self.tokens / self.ms.mid

    def as_json(self) -> dict[str, Any]:
        """Return plain numbers."""
        return {
            "tokens": self.tokens,
            "ms": self.ms.mid,
            "ms_interval": [self.ms.low, self.ms.high],
            "tokens_per_second": self.tokens_per_second,
            "share_of_floor": self.share_of_floor,
        }


def read(model: Model, roof: Roof, lengths: Sequence[int]) -> tuple[PromptPass, ...]:
    """Measure the reading of prompts of these lengths, by turns."""
    times: dict[int, list[float]] = {length: [] for length in lengths}
    for _ in range(TIMES):
        for length in lengths:
            times[length].append(_seconds(model, length))
    return tuple(
        PromptPass(
            length,
            median_of([1e3 * spent for spent in own]),
            _least(roof, length) / median(own),
        )
        for length, own in times.items()
    )


def _chunks(length: int) -> list[tuple[int, int, int]]:
    """Return start, size and kept rows of each forward."""
    starts = range(0, length, CHUNK)
    return [
        (start, min(CHUNK, length - start), int(start + CHUNK >= length))
        for start in starts
    ]


def _least(roof: Roof, length: int) -> float:
    return sum(roof.seconds(size, start, kept) for start, size, kept in _chunks(length))


def _seconds(model: Model, length: int) -> float:
    ids = [token % model.vocab for token in range(7, 7 + length)]
    before = perf_counter()
    model.open(SEQUENCE, length)
    try:
        for start, size, kept in _chunks(length):
            part = Read(SEQUENCE, start, ids[start : start + size], keep=kept)
            model.read([part])[:1, :1].sum().item()  # a GPU would run on
        return perf_counter() - before
    finally:
        model.close(SEQUENCE)
