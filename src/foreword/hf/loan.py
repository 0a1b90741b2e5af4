"""Somebody else's model for the length of one call, and what is worth remembering of it until the next.

Remembers facts (how it can be driven, what a forward costs), never weights: packing them again costs about four
one-token forwards, and a stale copy would be a wrong answer (`weight.data += …` leaves no trace to check).
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from threading import Lock, RLock
from typing import Any
from weakref import WeakKeyDictionary

from transformers import PreTrainedModel

from foreword.model import Capability, Model, borrow, measure


@dataclass(slots=True)
class Acquaintance:
    """What is remembered of a model. Refers neither to it nor to its weights, so that both can be freed."""

    lock: Any = field(default_factory=RLock)
    """One call at a time: a model on loan cannot be used by others."""
    shape: tuple[object, ...] = ()
    capability: Capability | None = None
    drafts: dict[str, Model] = field(default_factory=dict)
    """Draft models loaded for it, by folder or hub id."""
    _cost: dict[int, float] | None = None

    def meet(self, hf: PreTrainedModel) -> None:
        """Forget everything if the model is not built as it was: other layers, dtype, device or configuration."""
        weight = next(hf.parameters())
        layers = tuple((name, type(module)) for name, module in hf.named_modules())
        shape = (layers, weight.dtype, weight.device, hf.config.to_json_string())
        if shape != self.shape:
            self.shape, self.capability, self._cost = shape, None, None
            self.drafts.clear()

    def cost(self, model: Model) -> dict[int, float]:
        """Seconds of a forward by its rows, measured the first time."""
        if self._cost is None:
            self._cost = measure(model)
        return self._cost

    def draft(self, source: str, target: Model) -> Model:
        """The draft model of that name, loaded the first time."""
        if source not in self.drafts:
            self.drafts[source] = Model.load(source, dtype=target.dtype, device=str(target.device))
            self.drafts[source].lighten()
        return self.drafts[source]


_KNOWN: WeakKeyDictionary[PreTrainedModel, Acquaintance] = WeakKeyDictionary()
_GUARD = Lock()


@contextmanager
def alone(*models: PreTrainedModel) -> Iterator[None]:
    """While inside, nobody else borrows any of these. Whoever needs several asks here first.

    They are taken in one order, so that two who want the same models never wait for each other.
    """
    with ExitStack() as held:
        for known in sorted(map(_known, models), key=id):
            held.enter_context(known.lock)
        yield


@contextmanager
def loan(hf: PreTrainedModel) -> Iterator[tuple[Model, Acquaintance]]:
    """Borrow a model: probed the first time only, and given back as it was, whatever happens."""
    with alone(hf):
        known = _known(hf)
        known.meet(hf)
        with borrow(hf, known.capability) as model:
            known.capability = model.capability
            yield model, known


def _known(hf: PreTrainedModel) -> Acquaintance:
    with _GUARD:
        return _KNOWN.setdefault(hf, Acquaintance())
