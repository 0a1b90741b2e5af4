"""Checks of loading options: dtype, device, backend, forms of weights and cache."""

from collections.abc import Sequence
from typing import Any

import torch

from foreword.errors import ModelError, words
from foreword.model.executors.native.supported import usual
from foreword.model.executors.registry import GRAPH, NATIVE, Capability
from foreword.native import forward
from foreword.options import ModelOptions

DTYPES = {
    "float32": torch.float32,
    "bfloat16": torch.bfloat16,
    "float16": torch.float16,
}
FORMS = {
    "weights": {"int8": forward.BYTES, "int4": forward.GROUPS},
    "kv": {"int8": forward.BYTES},
}
"""Forms of quantized weights, keys and values, and how the C side names them."""


def placed(options: ModelOptions) -> tuple[torch.device, str | None]:
    """Return the device and the backend of these options; loads nothing.

    Raises ModelError for a device that this machine lacks.
    """
    offloads = options.offload_folder is not None
    return device_named(options.device), NATIVE if offloads else options.backend


def check_portable(model: str, capability: Capability) -> None:
    """Raise ModelError for a model whose backend uses operations of torch."""
    if capability.backend != NATIVE:
        raise ModelError(
            f"cannot run {model} with 'portable': only backend 'native' computes the "
            f"same on every processor, and it runs on '{capability.backend}' "
            f"({capability.reason}). Leave 'portable' out"
        )


def check_forms(
    model: str, capability: Capability, *, weights: str | None, kv: str | None
) -> None:
    """Raise ModelError for forms of weights, or of keys and values, that the model's
    backend does not read.
    """
    for what, name, form, readers in (
        ("weights", "weights", weights, (NATIVE, GRAPH)),
        ("keys and values", "kv", kv, (NATIVE,)),
    ):
        if form is not None and capability.backend not in readers:
            raise ModelError(
                f"cannot hold the {what} of {model} in {form}: only backend "
                f"{' or '.join(map(repr, readers))} reads them, and it runs on "
                f"'{capability.backend}' ({capability.reason}). Leave '{name}' out"
            )


def device_named(device: str) -> torch.device:
    """Return the device of this name. Raises ModelError if it is lacking."""
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
    dtype: str | torch.dtype, device: torch.device, kinds: Sequence[str] | None
) -> Sequence[Any]:
    """Return the dtypes to load a model in: the first if the native backend then runs
    it, else the second.
    """
    if dtype == "auto":
        return usual(kinds) if device.type == "cpu" else ["auto"]
    return [DTYPES[dtype] if isinstance(dtype, str) else dtype]
