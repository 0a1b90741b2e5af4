"""Names the executors, best first, and builds the backend of one; a module is imported
when its executor is tried.

The module of an executor has two functions: `refused(model)` says why it cannot run a
model, and `build(model, order)` returns its backend. See docs/extend/backend.md.
"""

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
"""The backends and the mode of each, best first; PLAIN is the fallback."""


LOSSES = {
    Mode.TREE: "it scores draft trees of many requests at once",
    Mode.CHAIN: "it scores draft tokens in chains, not in trees",
    Mode.CACHE: "it reads one request at a time, and draft tokens in chains, not trees",
    Mode.PLAIN: "it reads one token at a time, so nothing is drafted",
}
"""What a user gets in each mode."""


@dataclass(frozen=True, slots=True)
class Capability:
    """The chosen backend of a model, and why better ones were refused."""

    mode: Mode
    backend: str
    """One of BACKENDS, PLAIN or WHOLE."""
    error: float
    """Deviation of this backend's scores from the model's own in float32, in their
    standard deviations, on the text where it is worst.

    The largest; with mixtures of experts the median over rows, or a tenth of the
    largest if that is more.
    """
    refused: tuple[tuple[str, str], ...] = ()
    """(backend, reason) of the better backends that were not chosen."""

    @property
    def reason(self) -> str:
        """Return what is lost on this backend, and why better ones were refused."""
        return "; ".join(
            [LOSSES[self.mode], *(f"not {name}: {why}" for name, why in self.refused)]
        )

    def warning(self, model: str) -> str:
        """Return what is lost for a model of this name, why, and what to do."""
        by_dtype = any(
            "bfloat16" in why for name, why in self.refused if name == NATIVE
        )
        advice = "a model that docs/models.md lists with 'native'"
        if by_dtype:
            advice = "dtype='bfloat16'"
        return (
            f"slow path: {model} runs in mode '{self.mode.value}': {self.reason}. Use "
            f"{advice}"
        )


@dataclass(frozen=True, slots=True)
class Order:
    """What a backend is built for."""

    mode: Mode
    attention: str
    """The model's own attention."""
    swaps: "list[Swap]" = field(default_factory=list)
    """Layers that were replaced inside the model; what replaces more adds them."""
    owned: bool = False
    """Whether the backend may take the weights out of the model."""
    backend: str = ""
    """Name of the backend."""


def refusal(model: PreTrainedModel, backend: str) -> str | None:
    """Return why a backend cannot run a model, before any trial; None if it may."""
    return _module(backend).refused(model)


def made(model: PreTrainedModel, backend: str, order: Order) -> Backend:
    """Build a backend, and modify the model as it needs."""
    return _module(backend).build(model, replace(order, backend=backend))


def build_backend(
    model: PreTrainedModel,
    known: Capability,
    swaps: "list[Swap]",
    *,
    owned: bool = False,
) -> Backend:
    """Return the backend of a model whose capability is known from an earlier probe;
    `owned` as for `choose`.
    """
    attention = model.config._attn_implementation or "eager"
    return made(model, known.backend, Order(known.mode, attention, swaps, owned))


def _module(backend: str) -> Any:
    return import_module(EXECUTORS[backend.partition(" ")[0]])
