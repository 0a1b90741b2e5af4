"""Seconds of a load, and of forwards: of a model's backend, and of a trained head."""

from collections.abc import Callable
from functools import partial
from itertools import chain
from time import perf_counter
from typing import Any, TypeVar, cast
from weakref import WeakKeyDictionary

import torch
from torch import Tensor

from foreword.draft import Drafter
from foreword.draft.tree.drafter import DraftModel, ModelDrafter
from foreword.model import Model
from foreword.model.backend import Backend
from foreword.model.kv.pages import PagePool
from foreword.types.growth import GrownTree

T = TypeVar("T")


def clocked(make: Callable[[], T]) -> tuple[T, float]:
    """Return what `make` returns, and the seconds that it took."""
    started = perf_counter()
    made = make()
    return made, perf_counter() - started


class Timer:
    """Sum of the seconds that forwards take, and their number."""

    def __init__(self) -> None:
        self.seconds = 0.0
        self.reads = 0
        self._inside = False

    def clocked(self, forward: Callable[..., Any], *args: object) -> Any:
        """Call a method that runs forwards, and add its seconds."""
        if self._inside:  # one of the methods uses another
            return forward(*args)
        self._inside, before = True, perf_counter()
        try:
            result = forward(*args)
            _wait_for(result)
            return result
        finally:
            self._inside = False
            self.seconds += perf_counter() - before
            self.reads += 1


def _wait_for(result: Any) -> None:
    """Wait until a forward has ended: on a CPU it has when it returns, on a GPU it may
    only have been started.
    """
    logits = result[0] if isinstance(result, tuple) else result
    if isinstance(logits, Tensor) and logits.is_cuda:
        torch.cuda.synchronize(logits.device)


class TimedBackend(Timer):
    """A backend whose forwards are timed, with all methods of another one."""

    def __init__(self, inner: Backend) -> None:
        super().__init__()
        self._inner = inner
        # Runtime protocols do not ask __getattr__ (Python 3.12), so the methods that
        # they check for are attributes of the instance.
        for name in dir(inner):
            if not name.startswith("_") and not hasattr(type(self), name):
                attribute = getattr(inner, name)
                if name in ("read", "read_hidden"):
                    attribute = partial(self.clocked, attribute)
                if callable(attribute):
                    setattr(self, name, attribute)
        if grow := getattr(inner, "grow", None):
            self.grow = partial(self._grow, grow)
        self.mode, self.copies = inner.mode, inner.copies

    @property
    def pool(self) -> PagePool | None:
        return self._inner.pool

    def open(self, id: int, capacity: int, *_: object, **__: object) -> int:
        """Begin a sequence without earlier ones' pages: every run reads its prompt."""
        return self._inner.open(id, capacity)

    def _grow(
        self, grow: Callable[..., GrownTree | None], *args: object
    ) -> GrownTree | None:
        grown = self.clocked(grow, *args)
        if grown is not None:
            self.reads += len(grown.read)
        return grown

    def __getattr__(self, name: str) -> Any:
        """Return any other attribute of the inner backend."""
        return getattr(self._inner, name)


def timed(model: Model) -> TimedBackend:
    """Replace the model's backend by a timed one; a second call returns the same."""
    backend: Any = model.backend
    if not isinstance(backend, TimedBackend):
        model.backend = backend = cast(Any, TimedBackend(backend))
    return backend


FORWARDS = ("read", "grow", "ahead")
"""Methods of a trained head that run it, and prepare it, or grow the tree."""
_HEADS: WeakKeyDictionary[DraftModel, Timer] = WeakKeyDictionary()


def timed_drafts(drafter: Drafter) -> list[Timer]:
    """Have the models and heads of a drafter and of its members timed, each once, and
    return what sums their seconds; a second call returns the same.
    """
    timers: list[Timer] = []
    for reader in _readers(drafter):
        if isinstance(reader, Model):
            timers.append(timed(reader))
            continue
        if reader not in _HEADS:
            _HEADS[reader] = timer = Timer()
            for name in FORWARDS:
                if hasattr(reader, name):
                    forward = partial(timer.clocked, getattr(reader, name))
                    setattr(reader, name, forward)
        timers.append(_HEADS[reader])
    return timers


def _readers(drafter: Drafter) -> list[Any]:
    """Return the models and heads that a drafter and its members run, each once."""
    values = list({id(value): value for value in vars(drafter).values()}.values())
    collections = [value for value in values if isinstance(value, list | tuple)]
    candidates = [*chain.from_iterable(collections), *values]
    members = [one for one in candidates if isinstance(one, Drafter)]
    models: list[Any] = [value for value in values if isinstance(value, Model)]
    if isinstance(drafter, ModelDrafter) and not isinstance(drafter.draft_model, Model):
        models.append(drafter.draft_model)
    return models + [one for member in members for one in _readers(member)]
