"""What reading a target without some halves of its layers costs, in forwards of the whole: counted, or timed once.

Knows models and clocks; knows nothing about texts or how masks are found.
"""

from __future__ import annotations

from dataclasses import dataclass
from time import perf_counter
from typing import cast

import numpy as np

from foreword.draft.layers import DEEPEST, Mask, costs
from foreword.model import Model, Read
from foreword.model.view import Skip, Skipping

TURNS = (9, 200)
"""Forwards of every kind, in turn: at least, and at most."""
SECONDS = 10.0
"""Time for the forwards beyond the least."""
LUCK = 0.1
"""The quantile of its times that a forward counts with: what disturbs one only ever makes it longer."""
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
    """By the clock, on this machine. `read` is a token of an open sequence, `twin` a view of `target`.

    All attentions are thought to cost the same, and all MLPs: the price of a mask is then a sum, and as steady as three
    figures, while the times of single masks scatter by more than masks differ. What checks cost the model knows.
    """
    layers = target.hf.config.get_text_config().num_hidden_layers
    half = frozenset(range(0, layers, 2))  # without all of them the rest might fit into a cache
    skips = (Skip(), Skip(attention=half), Skip(mlp=half))
    times: list[list[float]] = [[] for _ in skips]
    started = perf_counter()
    for turn in range(1 + TURNS[1]):
        if turn > TURNS[0] and perf_counter() - started > SECONDS:
            break
        for skip, found in zip(skips, times, strict=True):
            cast("Skipping", twin.driver).skip(skip)
            with target.steady():
                found.append(_seconds(twin, read))
    whole, *without = (float(np.quantile(found[1:], LUCK)) for found in times)  # the first found everything cold
    saved = tuple((whole - seconds) / whole / len(half) for seconds in without)
    one = target.cost(0)
    return Prices(
        credible(saved, sum(costs(target)) / layers) * layers,
        tuple(max(1.0, target.cost(k) / one) for k in range(1 + DEEPEST)),
    )


def credible(saved: tuple[float, ...], most: float) -> tuple[float, ...]:
    """What the halves of a layer save, by the clock: on a busy machine they may seem to save more than there is.

    None costs more than nothing, and together they save no more than `most`, their share of the weights.
    """
    real = [max(0.0, one) for one in saved]
    fit = min(1.0, most / max(sum(real), LEAST * most))
    return tuple(fit * one for one in real)


def _seconds(model: Model, read: Read) -> float:
    before = perf_counter()
    model.read([read])[0, 0].item()  # an accelerator is done when a number is there
    return perf_counter() - before
