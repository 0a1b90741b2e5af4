"""Provides the probe, which finds the fastest exact backend by running the model;
configs are not trusted.

It runs a few short forwards, fastest backend first. In another dtype than float32, it
first checks the algorithm in float32 on the first layers. Then scores must be
bit-identical for every packing, and near the model's own.
"""

from __future__ import annotations

from dataclasses import dataclass

from torch import nn
from transformers import PreTrainedModel

from foreword.errors import InvalidRequest, ModelError, named
from foreword.model.architectures import body
from foreword.model.backend import Backend, Mode
from foreword.model.cache_backend import CacheBackend
from foreword.model.cpu import backend as cpu_backend
from foreword.model.cpu import recurrent
from foreword.model.cuda import backend as cuda_backend
from foreword.model.pool.attention import NAME
from foreword.model.pool.backend import PoolBackend
from foreword.model.pool.hooks import layers_of
from foreword.model.pool.packed_linear import Swap, swap_in, swap_out, tile_experts
from foreword.model.pool.seq2seq import Seq2SeqPoolBackend
from foreword.model.probe.trial import Trial
from foreword.model.seq2seq import Seq2SeqBackend, is_seq2seq

NATIVE = "native"
CACHE = "cache"
PLAIN = "plain"
WHOLE = "plain (whole texts)"
BACKENDS = {
    NATIVE: Mode.TREE,
    cuda_backend.GRAPH: Mode.TREE,
    "pool": Mode.TREE,
    "pool (chains)": Mode.CHAIN,
    CACHE: Mode.CACHE,
}
"""The backends and the mode of each, best first; PLAIN is the fallback when all of them
fail.
"""


def stateful(model: PreTrainedModel) -> str | None:
    """Return why the pool cannot run this model; None if it can.

    A recurrent state cannot be masked like a key.
    """
    try:
        parts = [part for layer in layers_of(model) for part in layer.modules()]
    except (ModelError, AttributeError, NotImplementedError):
        parts = list(model.modules())
    kinds = (
        type(part).__name__
        for part in parts
        if isinstance(part, nn.Conv1d) or _is_recurrent(type(part).__name__)
    )
    kind = next(kinds, None)
    if kind is not None:
        return (
            f"its layers keep a recurrent state ({kind}), and the pool holds only keys "
            "and values"
        )
    index = next(
        (type(part).__name__ for part in parts if "Indexer" in type(part).__name__),
        None,
    )
    if index is not None:
        return f"its attention selects keys by an index ({index})"
    router = next((type(part).__name__ for part in parts if _drops_tokens(part)), None)
    return (
        None
        if router is None
        else f"its experts drop tokens beyond a number of them in a forward ({router})"
    )


def _drops_tokens(part: nn.Module) -> bool:
    return (
        hasattr(part, "expert_capacity")
        and getattr(part, "moe_eval_capacity_token_fraction", 0) < 1
    )


RECURRENT = (
    "Mamba",
    "DeltaNet",
    "Recurrent",
    "ShortConv",
    "LinearAttention",
    "Lightning",
)
"""Parts of the class names of layers that keep a recurrent state."""


def _is_recurrent(name: str) -> bool:
    return any(word in name for word in RECURRENT)


REFUSED = {
    NATIVE: recurrent.refused,
    cuda_backend.GRAPH: lambda model: cuda_backend.refused(model) or stateful(model),
    "pool": stateful,
    "pool (chains)": stateful,
}
"""By backend: returns why it cannot run a model on this machine, before anything is
tried; None if it may.
"""


@dataclass(frozen=True, slots=True)
class Capability:
    """The chosen backend of a model, and why better ones were refused."""

    mode: Mode
    backend: str
    """One of BACKENDS, PLAIN or WHOLE."""
    error: float
    """Largest deviation of this backend's scores from the model's own, in their
    standard deviations.

    With mixtures of experts: the median over rows, or a tenth of the largest if that is
    more.
    """
    refused: tuple[tuple[str, str], ...] = ()
    """(backend, reason) of the better backends that were not chosen."""

    @property
    def reason(self) -> str:
        """Return the choice in one sentence."""
        best = (
            f"its scores deviate from the model's own by {self.error:.1e} standard "
            "deviations"
        )
        return "; ".join(
            [best, *(f"not {backend}: {why}" for backend, why in self.refused)]
        )


FAST = (NATIVE, cuda_backend.GRAPH)
"""Backends for some architectures on some machines; their algorithm is not checked in
float32 first.
"""


def backend_named(backend: str | None) -> str | None:
    """Return the name of a backend, or None for the best.

    Raises InvalidRequest for an unknown name.
    """
    names = list(dict.fromkeys(name.partition(" ")[0] for name in (*BACKENDS, PLAIN)))
    if backend is not None and backend not in names:
        raise InvalidRequest(
            f"cannot use backend={backend!r}: choose one of {', '.join(names)}, or "
            "leave it out"
        )
    return backend


def choose(
    model: PreTrainedModel,
    swaps: list[Swap],
    *,
    owned: bool = False,
    only: str | None = None,
) -> tuple[Backend, Capability]:
    """Return the fastest exact backend for a model. Layers replaced inside the model
    are added to `swaps`.

    A backend may take the weights out of an `owned` model, so that they are never held
    twice. `only` restricts the choice to one backend. Raises ModelError where no
    backend is exact.
    """
    own = model.config._attn_implementation or "eager"
    trial = Trial(model, lambda twin, name, mode: _make(twin, name, mode, [], own))
    why_not: list[tuple[str, str]] = []
    backend: Backend | None = None
    for name, mode in (*BACKENDS.items(), (PLAIN, Mode.PLAIN), (WHOLE, Mode.PLAIN)):
        if only not in (None, name.partition(" ")[0]):
            continue
        if reason := _refusal(model, name):
            why_not.append((name, reason))
            continue
        if isinstance(backend, cpu_backend.CpuBackend) and owned:
            backend.restore()
        if name not in FAST and (reason := trial.wrong(name, mode)):
            why_not.append((name, reason))
            continue
        try:
            backend = _make(model, name, mode, swaps, own, owned=owned)
            deviation = trial.deviation(backend, mode)
            reason = trial.batch_dependence(backend, mode)
        except Exception as error:
            if owned and name == NATIVE and backend is None:
                raise  # half of the weights are gone, so no other backend can be tried
            why_not.append((name, named(error)))
            continue
        allowed = trial.tolerance
        if isinstance(backend, recurrent.RecurrentBackend):
            # Recurrent states accumulate rounding: in bfloat16 such models deviate
            # further, on any backend.
            allowed *= 2
        if deviation > allowed or not deviation >= 0:
            reason = f"scores deviate by {deviation:.1e} standard deviations"
        if reason is None:
            return backend, Capability(mode, name, deviation, tuple(why_not))
        why_not.append((name, reason))
    reasons = "; ".join(f"{name}: {why}" for name, why in why_not)
    if only is not None:
        reasons = "; ".join(why for _, why in why_not)
        raise ModelError(
            f"cannot run this model on backend {only!r}: {reasons}. Use another backend"
        )
    raise ModelError(f"cannot run {type(model).__name__} on any backend: {reasons}")


def build_backend(
    model: PreTrainedModel, known: Capability, swaps: list[Swap], *, owned: bool = False
) -> Backend:
    """Return the backend of a model whose capability is known from an earlier probe;
    `owned` as for `choose`.
    """
    own = model.config._attn_implementation or "eager"
    return _make(model, known.backend, known.mode, swaps, own, owned=owned)


def _refusal(model: PreTrainedModel, backend: str) -> str | None:
    """Return why a backend cannot run a model, before anything is tried; None if it
    may.
    """
    if is_seq2seq(model.config) and backend == cuda_backend.GRAPH:
        return "it runs no encoder"
    if (
        is_seq2seq(model.config)
        and backend.startswith("pool")
        and not model._can_set_attn_implementation()
    ):
        return (
            "its attention cannot be replaced: it is not called through transformers' "
            "AttentionInterface"
        )
    return REFUSED.get(backend, lambda _: None)(model)


def _make(
    model: PreTrainedModel,
    backend: str,
    mode: Mode,
    swaps: list[Swap],
    own: str,
    *,
    owned: bool = False,
) -> Backend:
    """Build a backend, and modify the model as it needs."""
    if backend == NATIVE:
        return recurrent.drive(model, owned=owned)
    if backend in (CACHE, PLAIN, WHOLE):
        swap_out(swaps)  # some models compute with a layer's weight themselves
        swaps.clear()
        model.set_attn_implementation(own)
        if backend == CACHE:
            swaps.extend(tile_experts(model))
        kind = Seq2SeqBackend if is_seq2seq(model.config) else CacheBackend
        return kind(model, mode, cache=backend != WHOLE)
    swaps.extend(swap_in(model))
    if is_seq2seq(model.config):
        model.set_attn_implementation(NAME)
        return Seq2SeqPoolBackend(model, mode, own=own)
    body(model).set_attn_implementation(NAME)  # vision parts keep their own
    return (
        cuda_backend.CudaGraphBackend(model)
        if backend == cuda_backend.GRAPH
        else PoolBackend(model, mode)
    )
