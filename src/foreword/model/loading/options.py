"""Provides the checks of how a model is to be loaded: dtype, device, backend, forms of
weights, keys and values.
"""

from __future__ import annotations

from collections.abc import Sequence as List
from pathlib import Path
from typing import Any

import torch

from foreword.errors import InvalidRequest, ModelError, words
from foreword.model.cpu.supported import usual
from foreword.model.probe.probe import NATIVE, Capability, backend_named
from foreword.native import forward

DTYPES = {
    "float32": torch.float32,
    "bfloat16": torch.bfloat16,
    "float16": torch.float16,
}
FORMS = {
    "weights": {"int8": forward.BYTES, "int4": forward.GROUPS},
    "kv": {"int8": forward.BYTES},
}
"""Forms of quantized weights, and of quantized keys and values, and how the C side
names them.
"""


def options(
    *,
    dtype: str | torch.dtype,
    device: str,
    backend: str | None,
    weights: str | None,
    kv: str | None,
    offload_folder: str | Path | None = None,
) -> tuple[torch.device, str | None]:
    """Return the device and the backend of these names, after checking all six; loads
    nothing.

    Raises ModelError for an unknown dtype or a device this machine lacks,
    InvalidRequest for an unknown backend or form of weights or of keys and values, or
    one that does not go with the others.
    """
    for name, form in (
        ("weights", weights),
        ("kv", kv),
        ("offload_folder", offload_folder),
    ):
        if form not in (None, *FORMS.get(name, (form,))):
            raise InvalidRequest(
                f"cannot use {name}={form!r}: choose one of {', '.join(FORMS[name])}, "
                "or leave it out"
            )
        if form is not None and (
            backend not in (None, NATIVE)
            or dtype not in ("auto", "bfloat16", torch.bfloat16)
        ):
            raise InvalidRequest(
                f"cannot use {name}={str(form)!r} with dtype={dtype!r} and "
                f"backend={backend!r}: only backend 'native' "
                "reads them, and it runs models in bfloat16. Leave 'dtype' and "
                "'backend' out"
            )
    if dtype != "auto" and dtype not in (*DTYPES, *DTYPES.values()):
        raise ModelError(
            f"'dtype' must be 'auto' or one of {', '.join(DTYPES)}, got {dtype!r}"
        )
    return device_named(
        device
    ), NATIVE if offload_folder is not None else backend_named(backend)


def check_forms(
    model: str, capability: Capability, *, weights: str | None, kv: str | None
) -> None:
    """Raise ModelError for forms of weights, or of keys and values, that the model's
    backend does not read.
    """
    for what, name, form in (
        ("weights", "weights", weights),
        ("keys and values", "kv", kv),
    ):
        if form is not None and capability.backend != NATIVE:
            raise ModelError(
                f"cannot hold the {what} of {model} in {form}: only backend 'native' "
                "reads them, and it runs on "
                f"'{capability.backend}' ({capability.reason}). Leave '{name}' out"
            )


def device_named(device: str) -> torch.device:
    """Return the device of this name.

    Raises ModelError for one that this machine lacks.
    """
    if device == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        resolved = torch.device(device)
        torch.empty(0, device=resolved)
    except (RuntimeError, AssertionError) as error:
        raise ModelError(
            f"cannot use device {device!r}: {words(error)}. Use 'auto', 'cpu' or one "
            "that this machine has"
        ) from error
    return resolved


def dtypes(
    dtype: str | torch.dtype, device: torch.device, kinds: List[str] | None
) -> List[Any]:
    """Return the dtypes to load a model in: the first if the native backend then runs
    it, else the second.
    """
    if dtype == "auto":
        return usual(kinds) if device.type == "cpu" else ["auto"]
    return [DTYPES[dtype] if isinstance(dtype, str) else dtype]
