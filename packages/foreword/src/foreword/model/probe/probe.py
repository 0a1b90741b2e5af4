"""Probe that finds the fastest exact backend by running the model; configs are not
trusted.

It runs a few short forwards, fastest backend first. In another dtype than float32, it
first checks the algorithm in float32 on the first layers. Then scores must be
bit-identical for every packing, and near the model's own.
"""

from collections.abc import Sequence
from typing import TYPE_CHECKING

from transformers import PreTrainedModel

from foreword.errors import InvalidRequest, ModelError, named
from foreword.model.backend import Backend, Mode
from foreword.model.executors.registry import (
    BACKENDS,
    GRAPH,
    NATIVE,
    PLAIN,
    WHOLE,
    Capability,
    Order,
    made,
    refusal,
)
from foreword.model.loading.causal import check_causal
from foreword.model.probe.trial import Trial

if TYPE_CHECKING:
    from foreword.model.executors.torch.packed_linear import Swap


FAST = (NATIVE, GRAPH)
"""Backends of some architectures and machines that are not checked in float32."""


def backend_named(backend: str | None) -> str | None:
    """Return the backend's name; None: the best. Raises InvalidRequest if unknown."""
    names = list(dict.fromkeys(name.partition(" ")[0] for name in (*BACKENDS, PLAIN)))
    if backend is not None and backend not in names:
        raise InvalidRequest(
            f"cannot use backend={backend!r}: choose one of {', '.join(names)}, or "
            "leave it out"
        )
    return backend


def probed(
    model: PreTrainedModel,
    name: str,
    swaps: "list[Swap]",
    *,
    owned: bool,
    backend: str | None,
    text: Sequence[int],
) -> tuple[Backend, Capability]:
    """Return the fastest exact backend for a model that must be causal, as `choose`
    does; `backend` names the only one to try.
    """
    check_causal(model, name)
    only = backend_named(backend)
    return choose(model, swaps, owned=owned, only=only, text=text)


def choose(
    model: PreTrainedModel,
    swaps: "list[Swap]",
    *,
    owned: bool = False,
    only: str | None = None,
    text: Sequence[int] = (),
) -> tuple[Backend, Capability]:
    """Return the fastest exact backend for a model. Layers replaced inside the model
    are added to `swaps`.

    A backend may take the weights out of an `owned` model, so that they are never held
    twice. `only` restricts the choice to one backend; `text` is as for Trial. Raises
    ModelError where no backend is exact.
    """
    attn = model.config._attn_implementation or "eager"
    trial = Trial(
        model, lambda twin, name, mode: made(twin, name, Order(mode, attn, [])), text
    )
    why_not: list[tuple[str, str]] = []
    backend: Backend | None = None
    for name, mode in (*BACKENDS.items(), (PLAIN, Mode.PLAIN), (WHOLE, Mode.PLAIN)):
        if only not in (None, name.partition(" ")[0]):
            continue
        if reason := refusal(model, name):
            why_not.append((name, reason))
            continue
        if owned:  # the one before may have taken the weights out of the model
            getattr(backend, "restore", lambda: None)()
        if name not in FAST and (reason := trial.wrong(name, mode)):
            why_not.append((name, reason))
            continue
        try:
            backend = made(model, name, Order(mode, attn, swaps, owned))
            deviation, allowed = trial.deviation(backend, mode)
            reason = trial.batch_dependence(backend, mode)
        except Exception as error:
            if owned and name == NATIVE and backend is None:
                raise  # half of the weights are gone, so no other backend can be tried
            why_not.append((name, named(error)))
            continue
        if not deviation <= allowed:
            reason = (
                f"its scores differ from the model's own {deviation / allowed:.1f} "
                "times as much as rounding explains"
            )
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
