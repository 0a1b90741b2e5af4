"""Names the executors, best first, and builds the backend of one; a module is imported
when its executor is tried.

The module of an executor has two functions: `refused(model)` says why it cannot run a
model, and `build(model, order)` returns its backend. See docs/extend/backend.md.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from importlib import import_module
from typing import TYPE_CHECKING, Any

from transformers import PreTrainedModel

from foreword.model.backend import Backend, Mode
from foreword.options import EXECUTORS

if TYPE_CHECKING:
    from foreword.model.executors.torch.packed_linear import Swap

NATIVE = "native"
GRAPH = "graph"
CACHE = "cache"
PLAIN = "plain"
WHOLE = "plain (whole texts)"
BACKENDS = {
    NATIVE: Mode.TREE,
    GRAPH: Mode.TREE,
    "pool": Mode.TREE,
    "pool (chains)": Mode.CHAIN,
    CACHE: Mode.CACHE,
}
"""The backends and the mode of each, best first; PLAIN is the fallback when all of them
fail.
"""


@dataclass(frozen=True, slots=True)
class Order:
    """What a backend is built for."""

    mode: Mode
    attention: str
    """The model's own attention."""
    swaps: list[Swap] = field(default_factory=list)
    """Layers that were replaced inside the model; what replaces more adds them."""
    owned: bool = False
    """Whether the backend may take the weights out of the model."""
    backend: str = ""
    """Name of the backend."""


def refusal(model: PreTrainedModel, backend: str) -> str | None:
    """Return why a backend cannot run a model, before anything is tried; None if it
    may.
    """
    return _module(backend).refused(model)


def made(model: PreTrainedModel, backend: str, order: Order) -> Backend:
    """Build a backend, and modify the model as it needs."""
    return _module(backend).build(model, replace(order, backend=backend))


def _module(backend: str) -> Any:
    return import_module(EXECUTORS[backend.partition(" ")[0]])
