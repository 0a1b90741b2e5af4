"""Fits adapters to a target, and lets its sequences be read with them."""

import warnings
from dataclasses import replace

from foreword.errors import InvalidRequest, ModelError
from foreword.model.adapters import native, pool
from foreword.model.adapters.fitting import fitting
from foreword.model.adapters.folder import (
    Folders,
    LoraFolder,
)
from foreword.model.adapters.settings import refusal
from foreword.model.architectures import has_vision
from foreword.model.executors.native.backend import NativeBackend
from foreword.model.executors.torch.backend import PoolBackend
from foreword.model.model import Model
from foreword.model.probe.trial import batch_invariant, probe_text
from foreword.model.seq2seq import check_decoder_only
from foreword.options import ONLY_NATIVE, ModelOptions

BACKENDS = ("native", "pool")
"""The backends that add adapters."""
ADAPTED = (0, 1)
"""Sequences of the check that are read with an adapter; the other has none."""


def check_backend(options: ModelOptions) -> None:
    """Raise InvalidRequest for options with which no backend adds adapters."""
    if options.backend not in (None, *BACKENDS):
        raise InvalidRequest(
            f"cannot use adapters with backend={options.backend!r}: "
            "only 'native' and 'pool' add them. Leave 'backend' out"
        )


def slower(
    model: Model, folders: Folders, options: ModelOptions
) -> ModelOptions | None:
    """Return the options of `pool`, where a model should be loaded again to be adapted
    there; None where it is adapted as it is, or not at all.

    Raises ModelError where an adapter belongs to another model.
    """
    _check_target(model)
    for folder in folders.values():
        fitting(model, folder)
    backend = model.capability.backend
    reason: str | None = f"it runs on backend '{backend}'"
    if isinstance(model.backend, NativeBackend):
        reason = native.unplaced(model.hf, folders)
    elif isinstance(model.backend, PoolBackend):
        reason = None
    fixed = [
        name
        for name in ("backend", *ONLY_NATIVE)
        if getattr(options, name) not in (None, False)
    ]
    if reason is None or fixed:
        return None
    warnings.warn(
        f"slow path: {model.name} is adapted on backend 'pool': {reason}",
        stacklevel=4,
    )
    return replace(options, backend="pool")


def attach(model: Model, folders: Folders) -> None:
    """Let sequences of a model be read with these adapters.

    Raises ModelError where the model runs on another backend, an adapter belongs to
    another model, or its scores would depend on the batch.
    """
    _check_target(model)
    if model.adapters:
        raise InvalidRequest(
            f"cannot add adapters to {model.name}: it has some already. Load it again"
        )
    backend = model.backend
    if isinstance(backend, NativeBackend):
        memory = native.NativeAdapters()
        backend.memories = (*backend.memories, memory)
    elif isinstance(backend, PoolBackend):
        hooks = pool.TorchAdapters()
        backend.memories = (*backend.memories, hooks)
    fitted = {name: fit(model, folder) for name, folder in folders.items()}
    for name, adapter in fitted.items():
        mixed: dict[int, object] = dict.fromkeys(ADAPTED, adapter)
        text = probe_text(model.hf)
        if not batch_invariant(backend, text, model.mode, mixed):
            raise ModelError(
                f"cannot use adapter {name!r} with {model.name}: "
                "the bits of a score depend on the other rows "
                "of the batch. Merge it into the model"
            )
    model.adapters = fitted


def fit(model: Model, folder: LoraFolder) -> native.NativeAdapter | pool.LoraAdapter:
    """Return an adapter of this model.

    Raises ModelError where it is of another one, or the backend cannot add it.
    """
    layers = fitting(model, folder)
    if isinstance(model.backend, NativeBackend):
        reason = native.unplaced(model.hf, {"": folder})
        if reason is not None:
            raise refusal(folder.path, reason)
        return native.NativeAdapter(folder, model.hf)
    if isinstance(model.backend, PoolBackend) and model.device.type == "cpu":
        return pool.LoraAdapter(folder, layers)
    raise ModelError(
        f"cannot use adapters with {model.name}: "
        f"it runs on backend '{model.capability.backend}' "
        f"on {model.device}, and adapters need 'native' "
        "or 'pool' on a CPU. "
        "Load it with backend='pool' and device='cpu'"
    )


def _check_target(model: Model) -> None:
    """Raise InvalidRequest for a model that no backend adds adapters to."""
    check_decoder_only(model.seq2seq, model.name, "use adapters")
    if has_vision(model.hf.config):
        raise InvalidRequest(
            f"cannot use adapters with {model.name}: "
            "it reads images. Merge the adapter into the model"
        )
