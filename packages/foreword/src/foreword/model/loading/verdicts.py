"""Keeps what the probe found about a checkpoint, so that the next load of the same
files need not probe again.
"""

import os
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path

import torch
import transformers
from transformers import PreTrainedConfig

from foreword.errors import ForewordError
from foreword.files import CachedValues
from foreword.model.backend import Mode
from foreword.model.cost import machine
from foreword.model.executors.registry import Capability
from foreword.model.loading.sizes import stamps

LARGE = 2**23
"""Bytes of a checkpoint's files. Smaller ones are probed in a tenth of a second, and so
at every load.

The bundled models are larger. Their probe takes half a second where torch multiplies
bfloat16 in hardware, and seconds elsewhere: most of a start.
"""


def cached(
    source: str | Path, config: PreTrainedConfig, dtype: torch.dtype | str
) -> CachedValues | None:
    """Return the cache of the verdict about a checkpoint in a dtype, which may be
    empty; None where none is kept.

    Another version of the files, of a library, of this package or another processor has
    another verdict.
    """
    # loading names what is wrong
    with suppress(OSError, ForewordError, AttributeError, KeyError, TypeError):
        checkpoint = stamps(source, fetch=False)  # loading fetches files side by side
        if sum(size for _, size, _ in checkpoint) < LARGE or getattr(
            config, "auto_map", None
        ):
            return None
        root = Path(__file__).parents[2]
        sources = (*root.rglob("*.py"), *root.rglob("*.[ch]"))
        code = max(file.stat().st_mtime_ns for file in sources)
        # of the native library
        variables = ("CC", "FOREWORD_CFLAGS", "FOREWORD_INSTRUCTIONS")
        flags = [os.environ.get(name) for name in variables]
        about = {
            **machine(),
            "checkpoint": checkpoint,
            "config": config.to_dict(),
            "dtype": dtype,
            "transformers": transformers.__version__,
            "code": code,
            "flags": flags,
        }
        return CachedValues("probes", about)
    return None


def read(verdict: CachedValues) -> Capability | None:
    """Return a cached verdict; None where it does not exist or cannot be read."""
    held = verdict.read() or {}
    with suppress(ValueError, KeyError, TypeError):
        mode, error = Mode(held["mode"]), float(held["error"])
        refused = tuple(map(tuple, held["refused"]))
        return Capability(mode, held["backend"], error, refused)
    return None


def write(verdict: CachedValues | None, capability: Capability) -> None:
    """Cache a verdict, if it is to be kept."""
    if verdict is not None:
        verdict.write({**asdict(capability), "mode": capability.mode.value})
