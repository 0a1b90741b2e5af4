"""Cost of reading a target without some halves of its layers, in forwards of the whole:
counted or timed.
"""

from __future__ import annotations

from dataclasses import dataclass
from time import perf_counter
from typing import cast

import numpy as np

from foreword.draft.self_speculative.layers import DEEPEST, Mask, costs
from foreword.model import Model, Read
from foreword.model.skip import LayerSkip
from foreword.model.view import Skipping

TURNS = (9, 200)
"""Minimum and maximum number of interleaved turns, each a forward of every kind."""
SECONDS = 10.0
"""Seconds after which no turn beyond the minimum starts."""
QUANTILE = 0.1
"""Quantile of the measured times that is used: a disturbance only ever makes a forward
longer.
"""
LEAST = 0.02
"""Minimum cost of a forward, in forwards of the target: embedding, head and the call
itself stay.
"""


@dataclass(frozen=True, slots=True)
class Prices:
    """Costs in forwards of the target over one token."""

    halves: tuple[float, ...]
    """Saving of each half of each layer; numbered as in a mask."""
    checks: tuple[float, ...]
    """Cost of a forward over 1 + k tokens, at index k."""

    def propose(self, mask: Mask) -> float:
        """Return the cost of a forward over one token without these halves."""
        return max(LEAST, 1.0 - sum(self.halves[half] for half in mask))


def counted(target: Model) -> Prices:
    """Return costs by the weights read, equal on every machine; scoring more tokens
    costs the same as one.
    """
    return Prices(tuple(costs(target)), (1.0,) * (1 + DEEPEST))


def timed(target: Model, twin: Model, read: Read) -> Prices:
    """Return costs timed on this machine. `read` is a token of an open sequence, `twin`
    a view of `target`.

    All attentions count the same, and all MLPs, so the cost of a mask is a sum of three
    measured figures. The times of single masks scatter by more than masks differ. The
    costs of scoring come from the model's own cost function.
    """
    layers = target.hf.config.get_text_config().num_hidden_layers
    # half of them: without all, the rest might fit into a cache
    half = frozenset(range(0, layers, 2))
    skips = (
        LayerSkip(),
        LayerSkip(attention=half),
        LayerSkip(mlp=half),
    )
    whole, *without = _seconds_without(skips, target, twin, read)
    saved = tuple((whole - seconds) / whole / len(half) for seconds in without)
    halves = credible(saved, sum(costs(target)) / layers) * layers
    one = target.cost(0)
    checks = [max(1.0, target.cost(k) / one) for k in range(1 + DEEPEST)]
    return Prices(halves, tuple(checks))


def _seconds_without(
    skips: tuple[LayerSkip, ...],
    target: Model,
    twin: Model,
    read: Read,
) -> list[float]:
    """Return the seconds of a forward without each of these, timed in turns."""
    times: list[list[float]] = [[] for _ in skips]
    started = perf_counter()
    for turn in range(1 + TURNS[1]):
        if turn > TURNS[0] and perf_counter() - started > SECONDS:
            break
        for skip, samples in zip(skips, times, strict=True):
            cast("Skipping", twin.backend).skip(skip)
            with target.single_torch_thread():
                samples.append(_seconds(twin, read))
    # the first is a warm-up
    return [float(np.quantile(samples[1:], QUANTILE)) for samples in times]


def credible(saved: tuple[float, ...], most: float) -> tuple[float, ...]:
    """Return the timed savings of a layer's halves, clipped: on a busy machine they may
    exceed what is possible.

    None is below 0, and their sum is at most `most`, their share of the weights.
    """
    real = [max(0.0, one) for one in saved]
    fit = min(1.0, most / max(sum(real), LEAST * most))
    return tuple(fit * one for one in real)


def _seconds(model: Model, read: Read) -> float:
    before = perf_counter()
    model.read([read])[0, 0].item()  # waits for an accelerator
    return perf_counter() - before
