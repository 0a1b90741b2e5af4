"""Finds out, on the real model, the best exact way to drive it; flags and configurations are never trusted alone.

A few short forwards, best way first. The algorithm is judged in float32, on the first layers of a model in another
dtype; then the scores of a text must be equal bit for bit, however it is read, and near the model's own.
"""

from __future__ import annotations

from dataclasses import dataclass

from torch import nn
from transformers import PreTrainedModel

from foreword.errors import InvalidRequest, ModelError, named
from foreword.model import graph, native, recurrent
from foreword.model.attention import NAME
from foreword.model.cached import CachedDriver
from foreword.model.driver import Driver, Mode
from foreword.model.linear import Swap, swap_in, swap_out, tile_experts
from foreword.model.listen import layers_of
from foreword.model.pooled import PooledDriver
from foreword.model.trial import Trial

NATIVE, PLAIN, WHOLE = "native", "plain", "plain (whole texts)"
WAYS = {NATIVE: Mode.TREE, graph.GRAPH: Mode.TREE, "pool": Mode.TREE, "pool (chains)": Mode.CHAIN, "cache": Mode.CACHE}
"""The ways to drive a model and what each can score, best first; PLAIN is what is left when all of them fail."""


def stateful(model: PreTrainedModel) -> str | None:
    """Why the pool cannot hold what this model remembers; None if it can. A state is no key that can be masked."""
    try:
        parts = [part for layer in layers_of(model) for part in layer.modules()]
    except (ModelError, AttributeError, NotImplementedError):
        parts = list(model.modules())
    kinds = (type(part).__name__ for part in parts if isinstance(part, nn.Conv1d) or _remembers(type(part).__name__))
    found = next(kinds, None)
    if found is not None:
        return f"its layers remember in a state ({found}), and the pool holds keys and values"
    index = next((type(part).__name__ for part in parts if "Indexer" in type(part).__name__), None)
    return None if index is None else f"its attention reads the keys that an index names ({index})"


def _remembers(name: str) -> bool:
    return any(word in name for word in ("Mamba", "DeltaNet", "Recurrent", "ShortConv", "LinearAttention", "Lightning"))


REFUSED = {
    NATIVE: recurrent.refused,
    graph.GRAPH: lambda model: graph.refused(model) or stateful(model),
    "pool": stateful,
    "pool (chains)": stateful,
}
"""What says why not for this model on this machine, before anything is tried."""


@dataclass(frozen=True, slots=True)
class Capability:
    """How a model will be driven, and why not better."""

    mode: Mode
    way: str
    """Which of WAYS, or PLAIN."""
    error: float
    """Largest deviation from the model's own scores in this way, in units of their standard deviation.

    Where there are experts it is that of a middling row.
    """
    refused: tuple[tuple[str, str], ...] = ()
    """Better ways, and why they are not taken."""

    @property
    def reason(self) -> str:
        """One sentence for a person."""
        best = f"its scores deviate from the model's own by {self.error:.1e} of their spread"
        return "; ".join([best, *(f"not {way}: {why}" for way, why in self.refused)])


FAST = (NATIVE, graph.GRAPH)
"""Ways for some kinds of model on some machines."""


def known_way(way: str | None) -> str | None:
    """The name of a way, or None for the best. Raises InvalidRequest where there is no such way."""
    names = list(dict.fromkeys(name.partition(" ")[0] for name in (*WAYS, PLAIN)))
    if way is not None and way not in names:
        raise InvalidRequest(f"there is no way {way!r} to drive a model; choose one of {', '.join(names)}")
    return way


def choose(
    model: PreTrainedModel, swaps: list[Swap], *, owned: bool = False, only: str | None = None
) -> tuple[Driver, Capability]:
    """The best driver for a model. Layers that are replaced inside the model are added to `swaps`.

    One that is `owned` may lose its weights to the driver, so that they are never held twice. Where `only` names a way,
    no other is tried; raises ModelError where that cannot be taken.
    """
    own = model.config._attn_implementation or "eager"
    trial = Trial(model, lambda twin, way, mode: _make(twin, way, mode, [], own))
    why_not: list[tuple[str, str]] = []
    driver: Driver | None = None
    for way, mode in (*WAYS.items(), (PLAIN, Mode.PLAIN), (WHOLE, Mode.PLAIN)):
        if only not in (None, way.partition(" ")[0]):
            continue
        if unsuited := REFUSED.get(way, lambda _: None)(model):
            why_not.append((way, unsuited))
            continue
        if isinstance(driver, native.NativeDriver) and owned:
            driver.restore()
        if way not in FAST and (unsuited := trial.wrong(way, mode)):
            why_not.append((way, unsuited))
            continue
        try:
            driver = recurrent.drive(model, owned=owned) if way == NATIVE else _make(model, way, mode, swaps, own)
            deviation, unsuited = trial.deviation(driver, mode), trial.unsteady(driver, mode)
        except Exception as error:
            if owned and way == NATIVE and driver is None:
                raise  # half of the weights are gone, so nothing else can be tried
            why_not.append((way, named(error)))
            continue
        # States carry on what was rounded: in bfloat16 such models stray that much further, driven by us or not.
        allowed = trial.tolerance * (2 if isinstance(driver, recurrent.RecurrentDriver) else 1)
        if deviation > allowed or not deviation >= 0:
            unsuited = f"scores deviate by {deviation:.1e} of their spread"
        if unsuited is None:
            return driver, Capability(mode, way, deviation, tuple(why_not))
        why_not.append((way, unsuited))
    reasons = "; ".join(f"{way}: {why}" for way, why in why_not)
    if only is not None:
        reasons = "; ".join(why for _, why in why_not)
        raise ModelError(f"this model cannot be driven the way {only}: {reasons}")
    raise ModelError(f"cannot drive {type(model).__name__} by any backend: {reasons}")


def drive(model: PreTrainedModel, known: Capability, swaps: list[Swap]) -> Driver:
    """The driver of a model whose capability was found before."""
    return _make(model, known.way, known.mode, swaps, model.config._attn_implementation or "eager")


def _make(model: PreTrainedModel, way: str, mode: Mode, swaps: list[Swap], own: str) -> Driver:
    """A driver of one way; leaves the model as that way needs it."""
    if way == NATIVE:
        return recurrent.drive(model)
    if way in ("cache", PLAIN, WHOLE):
        swap_out(swaps)  # some models compute with a layer's weight themselves
        swaps.clear()
        model.set_attn_implementation(own)
        if way == "cache":
            swaps.extend(tile_experts(model))
        return CachedDriver(model, mode, cache=way != WHOLE)
    swaps.extend(swap_in(model))
    model.set_attn_implementation(NAME)
    return graph.GraphDriver(model) if way == graph.GRAPH else PooledDriver(model, mode)
