"""Forwards of several sequences and of prompts, against what the machine allows."""

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median
from time import perf_counter
from typing import Any, Literal

from foreword.model import Model, Read
from foreword.model.executors.cuda.backend import CudaGraphBackend
from foreword_lab.bench.roofline.roof import Roof
from foreword_lab.bench.roofline.timing import Memory, seconds, turns
from foreword_lab.bench.stats import Interval, median_of

BATCHES = (1, 2, 4, 8, 16, 32, 64)
FIRST = 100
"""Id of the first sequence of a batch."""
PROMPTS = (128, 512, 2048)
"""Tokens of the prompts."""
TIMES = 3
"""Readings of each prompt; one takes seconds."""
SMALL, LARGE = 16, 512
"""Rows of other shapes than the one: for plain decoding, and for prompts."""
CHUNK = 512
"""Tokens of a prompt that one forward reads, as in serving."""
SEQUENCE = 0

Times = dict[int, list[float]]
"""Size of a pass -> its seconds, one for each turn."""


@dataclass(frozen=True, slots=True)
class Pass:
    """Forwards of one kind and size."""

    kind: Literal["nodes", "batch", "tokens"]
    """Size of the tokens scored, of a batch with one token each, or of a prompt."""
    size: int
    ms: Interval
    """Median, and its 95 % interval by the bootstrap."""
    share_of_floor: float
    """Least time of the forwards, divided by their median time."""
    cost_over_one: float | None = None
    """Median of the ratios to the smallest size in the same turn, since a machine
    drifts; None of a prompt.
    """
    predicted_ms: float | None = None
    """Prediction of a cost table measured just before, for one sequence."""

    @classmethod
    def of(cls, kind: Any, size: int, times: Times, least: float) -> "Pass":
        """Return the passes of a size; `least`: seconds that they take at least."""
        runs, first = times[size], next(iter(times.values()))
        ratios = [spent / one for spent, one in zip(runs, first, strict=True)]
        return cls(
            kind,
            size,
            median_of([1e3 * spent for spent in runs]),
            least / median(runs),
            None if kind == "tokens" else median(ratios),
        )

    @property
    def shown(self) -> str:
        """What the forwards score, as the table calls it."""
        names = {"nodes": "{}", "batch": "1 of {}", "tokens": "prompt of {}"}
        return names[self.kind].format(self.size)

    def as_json(self) -> dict[str, Any]:
        """Return plain numbers."""
        speed = 1e3 * self.size / self.ms.mid if self.kind == "tokens" else None
        figures = {
            self.kind: self.size,
            "ms": self.ms.mid,
            "ms_interval": [self.ms.low, self.ms.high],
            "tokens_per_second": speed,
            "share_of_floor": self.share_of_floor,
            "cost_over_one": self.cost_over_one,
            "predicted_ms": self.predicted_ms,
        }
        return {name: value for name, value in figures.items() if value is not None}


def batches(
    model: Model,
    sizes: tuple[int, int],
    context: int,
    counts: Sequence[int],
    spend: float,
) -> tuple[Pass, ...]:
    """Measure forwards over 1 token of several sequences after `context` tokens,
    interleaved for `spend` seconds; weights are read once per batch.

    `sizes` are the bytes of the weights, and of the keys of one sequence, that a pass
    reads.
    """
    if not counts:
        return ()
    ids = [token % model.vocab for token in range(7, 8 + context)]
    sequences = range(FIRST, FIRST + max(counts))
    memory, readings = Memory(model.device), []
    times: Times = {count: [] for count in counts}
    try:
        for sequence in sequences:
            model.open(sequence, len(ids))
            model.read([Read(sequence, 0, ids[:context], keep=0)])
        reads = [Read(sequence, context, ids[context:]) for sequence in sequences]
        for count in counts:  # warm-up, not counted
            seconds(model, reads[:count])
        for _ in turns(spend):
            readings.append(memory())
            for count in counts:
                times[count].append(seconds(model, reads[:count]))
    finally:
        for sequence in sequences:
            model.close(sequence)
    weights, keys = sizes
    return tuple(
        Pass.of("batch", count, times, (weights + count * keys) / max(readings))
        for count in counts
    )


def prompts(model: Model, roof: Roof, lengths: Sequence[int]) -> tuple[Pass, ...]:
    """Measure the reading of prompts of these lengths, by turns."""
    times: Times = {length: [] for length in lengths}
    for _ in range(TIMES):
        for length in lengths:
            times[length].append(_seconds(model, length))
    return tuple(
        Pass.of("tokens", length, times, _least(roof, length)) for length in lengths
    )


def shape_price(model: Model, spend: float) -> tuple[float, float] | None:
    """Return the time of a token in the one shape of the graph backend over that in
    SMALL rows, and of LARGE tokens of a prompt over that in LARGE rows; None on other
    backends, and where the context is too short.
    """
    backend = model.backend
    if not isinstance(backend, CudaGraphBackend) or model.context < LARGE:
        return None
    ids = [token % model.vocab for token in range(7, 7 + LARGE)]
    reads = Read(SEQUENCE, LARGE - 1, ids[-1:]), Read(SEQUENCE, 0, ids)
    several = backend.with_buckets((SMALL, LARGE))
    for reader in (backend, several):
        reader.open(SEQUENCE, LARGE)
        for read in reads:
            seconds(reader, [read])  # records it
    ratios = [
        [seconds(backend, [read]) / seconds(several, [read]) for read in reads]
        for _ in turns(spend)
    ]
    backend.close(SEQUENCE)
    return median(token for token, _ in ratios), median(prompt for _, prompt in ratios)


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
        for start, size, count in _chunks(length):
            part = Read(SEQUENCE, start, ids[start : start + size], keep=count)
            model.read([part])[:1, :1].sum().item()  # a GPU would run on
        return perf_counter() - before
    finally:
        model.close(SEQUENCE)
