"""Keeps what the probe found about a checkpoint, so that the next load of the same
files need not probe again.
"""

import json
import os
from contextlib import suppress
from dataclasses import asdict
from hashlib import sha256
from pathlib import Path

import torch
import transformers
from transformers import PreTrainedConfig

from foreword.errors import ForewordError
from foreword.files import cache
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


def verdict_file(
    source: str | Path, config: PreTrainedConfig, dtype: torch.dtype | str
) -> Path | None:
    """Return the file of the verdict about a checkpoint in a dtype, which may not
    exist; None where none is kept.

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
        about = [
            checkpoint,
            config.to_dict(),
            str(dtype),
            machine(),
            transformers.__version__,
            code,
            flags,
        ]
        key = sha256(json.dumps(about, default=str).encode()).hexdigest()
        return cache() / "probes" / f"{key[:16]}.json"
    return None


def read(file: Path) -> Capability | None:
    """Return the verdict in a file; None where it does not exist or cannot be read."""
    with suppress(OSError, ValueError, KeyError, TypeError):
        held = json.loads(file.read_text(encoding="utf-8"))
        mode, error = Mode(held["mode"]), float(held["error"])
        refused = tuple(map(tuple, held["refused"]))
        return Capability(mode, held["backend"], error, refused)
    return None


def write(file: Path | None, verdict: Capability) -> None:
    """Write a verdict, if it has a file; a folder that cannot be written is ignored."""
    if file is None:
        return
    with suppress(OSError):
        file.parent.mkdir(parents=True, exist_ok=True)
        begun = file.with_suffix(".tmp")
        begun.write_text(
            json.dumps({**asdict(verdict), "mode": verdict.mode.value}),
            encoding="utf-8",
        )
        begun.replace(file)
