"""`foreword env`: facts about the machine for bug reports. Loads no model."""

import json
import os
import platform
import shlex
import sys
from importlib.metadata import PackageNotFoundError, version

from foreword.cli.common import options, render

PACKAGES = ("tokenizers", "safetensors", "typer", "rich", "numpy")
PREFIXES = (
    "FOREWORD_",
    "OMP_",
    "MKL_",
    "KMP_",
    "ONEDNN_",
    "DNNL_",
    "TORCH",
    "PYTORCH_",
    "CUDA_",
    "ATEN_",
    "HF_HUB_OFFLINE",
)
"""Environment variables that change results or speed; none of them holds a secret."""


def env(as_json: options.AsJson = False) -> None:
    """Show versions, hardware and settings of this machine, for bug reports."""
    with render.loading("looking at this machine"):
        facts = _facts()
    if as_json:
        sys.stdout.write(json.dumps(facts) + "\n")
    else:
        render.facts({name.replace("_", " "): value for name, value in facts.items()})


def _facts() -> dict[str, object]:
    import torch

    from foreword.native.machine import machine, versions

    flags = _flags()
    return {
        **versions(),
        **{package: _version(package) for package in PACKAGES},
        "system": platform.platform(),
        **machine(),
        "native_code": _native(),
        "amx_bf16": "amx_bf16" in flags,
        "avx512_bf16": "avx512_bf16" in flags,
        "avx512": "avx512bw" in flags,
        "avx2": "avx2" in flags,
        "cuda_devices": [
            torch.cuda.get_device_name(place)
            for place in range(torch.cuda.device_count())
        ],
        "variables": {
            name: value
            for name, value in sorted(os.environ.items())
            if name.startswith(PREFIXES)
        },
    }


def _native() -> str:
    """Return where the library of our C code is from, or why there is none."""
    from foreword.native import built, compiler, forward, sampling

    reason = sampling.reason()
    draws = sampling.library()
    if reason or draws is None:
        return str(reason)
    instructions, library = built.instructions(draws), forward.library()
    if instructions:
        status = f"built for {instructions}"
    else:
        command = compiler.compiler()
        words = command if isinstance(command, str) else shlex.join(command)
        status = f"compiled ({words})"
    if isinstance(library, str):
        return f"{status}; sampling only: {library}"
    return f"{status}; matrix products use AMX" if forward.amx() else status


def _version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None


def _flags() -> set[str]:
    """Return the flags of the processor; none on systems other than Linux."""
    from foreword.native.cpu import cpuinfo

    flags = (line.partition(":")[2] for line in cpuinfo() if line.startswith("flags"))
    return set(next(flags, "").split())
