"""`foreword env`: what a bug report should say about the machine. Loads no model."""

from __future__ import annotations

import json
import os
import platform
import shlex
import sys
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from foreword.cli import options, show

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
    """Say what this machine is: for bug reports, and beside every figure."""
    import torch

    from foreword.bench.machine import machine, versions

    flags = _flags()
    facts: dict[str, object] = {
        **versions(),
        **{package: _version(package) for package in PACKAGES},
        "system": platform.platform(),
        **machine(),
        "native_code": _native(),
        "amx_bf16": "amx_bf16" in flags,
        "avx512_bf16": "avx512_bf16" in flags,
        "avx512": "avx512bw" in flags,
        "avx2": "avx2" in flags,
        "cuda_devices": [torch.cuda.get_device_name(place) for place in range(torch.cuda.device_count())],
        "variables": {name: value for name, value in sorted(os.environ.items()) if name.startswith(PREFIXES)},
    }
    if as_json:
        sys.stdout.write(json.dumps(facts) + "\n")
    else:
        show.facts({name.replace("_", " "): value for name, value in facts.items()})


def _native() -> str:
    """Whether our C code could be compiled for this machine, or why not."""
    from foreword.native import compiler, draws, llama

    why = draws.reason()
    if why:
        return why
    command, forward = compiler.compiler(), llama.library()
    made = f"compiled ({command if isinstance(command, str) else shlex.join(command)})"
    if isinstance(forward, str):
        return f"{made}; draws only: {forward}"
    return f"{made}; multiplies in AMX registers" if llama.amx() else made


def _version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None


def _flags() -> set[str]:
    """What the kernel says the processor can do; nothing on systems without /proc."""
    info = Path("/proc/cpuinfo")
    lines = info.read_text(encoding="utf-8").splitlines() if info.exists() else []
    return set(next((line.partition(":")[2] for line in lines if line.startswith("flags")), "").split())
