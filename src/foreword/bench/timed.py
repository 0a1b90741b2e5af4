"""Seconds of a load, and of forwards: of a model's backend, and of a trained head."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from itertools import chain
from time import perf_counter
from typing import Any, Protocol, TypeVar, runtime_checkable
from weakref import WeakKeyDictionary

import torch
from jaxtyping import Float
from torch import Tensor

from foreword.draft import Drafter
from foreword.draft.tree.drafter import DraftModel, ModelDrafter
from foreword.model import Model, Read
from foreword.model.backend import Backend, GrowsTrees
from foreword.model.kv.memories import Kind
from foreword.model.kv.pages import PagePool
from foreword.types.growth import GrownTree, TreeRequest

T = TypeVar("T")


def clocked(make: Callable[[], T]) -> tuple[T, float]:
    """Return what `make` returns, and the seconds that it took."""
    started = perf_counter()
    made = make()
    return made, perf_counter() - started


class TimedBackend:
    """A backend that sums the seconds of another one's forwards."""

    def __init__(self, inner: Backend) -> None:
        self.mode, self.copies = inner.mode, inner.copies
        self.seconds = 0.0
        self.reads = 0
        self._inner = inner
        # Runtime protocols do not ask __getattr__ (Python 3.12), so the methods that
        # they check for are attributes of the instance.
        for name in dir(inner):
            if name.startswith("_") or hasattr(type(self), name):
                continue
            attribute = getattr(inner, name)
            if name == "read_hidden":
                attribute = partial(self._timed_read, attribute)
            if callable(attribute):
                setattr(self, name, attribute)

    def open(
        self,
        id: int,
        capacity: int,
        tokens: Sequence[int] = (),
        tenant: str = "",
        layers: Sequence[int] = (),
    ) -> int:
        """Begin a sequence, without the pages of earlier ones: every run of a prompt
        reads all of it.
        """
        return self._inner.open(id, capacity)

    def memory(self, kind: type[Kind]) -> Kind | None:
        return self._inner.memory(kind)

    def give(self, id: int, material: object) -> None:
        self._inner.give(id, material)

    def close(self, id: int) -> None:
        self._inner.close(id)

    def read(self, reads: Sequence[Read]) -> Float[Tensor, "kept vocab"]:
        before = perf_counter()
        logits = self._inner.read(reads)
        _wait_for(logits)
        self.seconds += perf_counter() - before
        self.reads += 1
        return logits

    def move(self, id: int, source: list[int], start: int) -> None:
        self._inner.move(id, source, start)

    @property
    def pool(self) -> PagePool | None:
        return self._inner.pool

    def __getattr__(self, name: str) -> Any:
        """Return any other attribute of the inner backend."""
        return getattr(self._inner, name)

    def _timed_read(
        self, read_hidden: Callable[..., tuple[Tensor, Tensor]], *args: object
    ) -> tuple[Tensor, Tensor]:
        before = perf_counter()
        result = read_hidden(*args)
        _wait_for(result[0])
        self.seconds += perf_counter() - before
        self.reads += 1
        return result


def _wait_for(logits: Tensor) -> None:
    """Wait until a forward has ended: on a CPU it has when it returns, on a GPU it may
    only have been started.
    """
    if logits.is_cuda:
        torch.cuda.synchronize(logits.device)


@runtime_checkable
class _TreeBackend(Backend, GrowsTrees, Protocol):
    """A backend with the fast path for trees."""


class TimedTreeBackend(TimedBackend):
    """The same for a backend that grows trees; a separate class, since runtime
    protocols check for method names.
    """

    def __init__(self, inner: _TreeBackend) -> None:
        super().__init__(inner)
        self._tree_backend = inner

    def grow(self, read: Read, ask: TreeRequest) -> GrownTree:
        before = perf_counter()
        grown = self._tree_backend.grow(read, ask)
        self.seconds += perf_counter() - before
        self.reads += 1 + len(grown.read)
        return grown


def timed(model: Model) -> TimedBackend:
    """Replace the model's backend by a timed one and return it; a second call returns
    the same.
    """
    backend = model.backend
    if not isinstance(backend, TimedBackend):
        model.backend = backend = (
            TimedTreeBackend(backend)
            if isinstance(backend, GrowsTrees)
            else TimedBackend(backend)
        )
    return backend


class TimedHead:
    """The seconds in what a drafter has a trained head compute: its forwards, their
    preparation and, grown in one call, the tree.
    """

    FORWARDS = ("read", "grow", "ahead")
    """Methods of a head that run it."""

    def __init__(self, head: DraftModel) -> None:
        """Replace these methods of `head`."""
        self.seconds = 0.0
        self._inside = False
        for name in self.FORWARDS:
            if hasattr(head, name):
                setattr(head, name, partial(self._timed, getattr(head, name)))

    def _timed(self, forward: Callable[..., Any], *args: object) -> Any:
        if self._inside:  # one of the methods uses another
            return forward(*args)
        self._inside, before = True, perf_counter()
        try:
            result = forward(*args)
            if isinstance(result, Tensor):
                _wait_for(result)
            return result
        finally:
            self._inside = False
            self.seconds += perf_counter() - before


_HEADS: WeakKeyDictionary[DraftModel, TimedHead] = WeakKeyDictionary()


def timed_drafts(drafter: Drafter) -> list[TimedBackend | TimedHead]:
    """Have the models and heads of a drafter and of its members timed, each once, and
    return what sums their seconds; a second call returns the same.
    """
    found: list[TimedBackend | TimedHead] = []
    for reader in _readers(drafter):
        if isinstance(reader, Model):
            found.append(timed(reader))
            continue
        if reader not in _HEADS:
            _HEADS[reader] = TimedHead(reader)
        found.append(_HEADS[reader])
    return found


def _readers(drafter: Drafter) -> list[Any]:
    """Return the models and heads that a drafter and its members run, each once."""
    values = list({id(value): value for value in vars(drafter).values()}.values())
    collections = [value for value in values if isinstance(value, list | tuple)]
    candidates = [*chain.from_iterable(collections), *values]
    members = [one for one in candidates if isinstance(one, Drafter)]
    own: list[Any] = [value for value in values if isinstance(value, Model)]
    if isinstance(drafter, ModelDrafter) and not isinstance(drafter.draft_model, Model):
        own.append(drafter.draft_model)
    return own + [one for member in members for one in _readers(member)]
