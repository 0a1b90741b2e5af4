"""What reading a target without some halves of its layers costs, in forwards of the whole: counted, or timed once.

Knows models and clocks; knows nothing about texts or how masks are found.
"""

from __future__ import annotations

from dataclasses import dataclass
from statistics import median
from time import perf_counter
from typing import cast

from foreword.draft.layers import DEEPEST, Mask, costs
from foreword.model import Model, Read
from foreword.model.view import Skip, Skipping

TURNS = 15
"""Forwards of every kind, in turn; the median of each counts."""
LEAST = 0.02
"""No reading is cheaper than this: embedding, head and the call itself stay."""


@dataclass(frozen=True, slots=True)
class Prices:
    """All in forwards of the target over one token."""

    halves: tuple[float, ...]
    """What leaving out each half of each layer saves; numbered as in a mask."""
    checks: tuple[float, ...]
    """A forward over 1 + k tokens, at place k."""

    def guess(self, mask: Mask) -> float:
        """A forward over one token without these halves."""
        return max(LEAST, 1.0 - sum(self.halves[half] for half in mask))


def counted(target: Model) -> Prices:
    """By the weights that are read: the same on every machine. Checks cost what a single token does."""
    return Prices(tuple(costs(target)), (1.0,) * (1 + DEEPEST))


def timed(target: Model, twin: Model, read: Read) -> Prices:
    """By the clock, on this machine. `read` is `DEEPEST` + 1 tokens of an open sequence, `twin` a view of `target`.

    All attentions are thought to cost the same, and all MLPs: a mask's price is then a sum, and as steady as these
    medians, while the times of single masks scatter by more than masks differ.
    """
    layers = target.hf.config.get_text_config().num_hidden_layers
    skips = {"attention": Skip(attention=frozenset(range(layers))), "mlp": Skip(mlp=frozenset(range(layers)))}
    times: dict[str | int, list[float]] = {key: [] for key in (*range(1, len(read.tokens) + 1), *skips)}
    for turn in range(TURNS + 1):
        with target.steady():
            for rows in range(1, len(read.tokens) + 1):
                few = Read(read.id, read.past, read.tokens[:rows], keep=rows)
                times[rows].append(_seconds(target, few))
            one = Read(read.id, read.past, read.tokens[:1])
            for name, skip in skips.items():
                cast("Skipping", twin.driver).skip(skip)
                times[name].append(_seconds(twin, one))
        if not turn:  # it found everything cold
            times = {key: [] for key in times}
    of = {key: median(found) for key, found in times.items()}
    attention, mlp = (max(0.0, (of[1] - of[name]) / of[1] / layers) for name in skips)
    return Prices(
        (attention, mlp) * layers, tuple(max(1.0, of[rows] / of[1]) for rows in range(1, 1 + len(read.tokens)))
    )


def _seconds(model: Model, read: Read) -> float:
    before = perf_counter()
    model.read([read])[0, 0].item()  # an accelerator is done when a number is there
    return perf_counter() - before
