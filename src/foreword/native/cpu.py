"""The name and features of the processor."""

from __future__ import annotations

import platform
from pathlib import Path

import torch


def processor() -> str:
    """Return the vendor's name of the processor if the system reports it, else its
    architecture.
    """
    names = (
        line.partition(":")[2].strip()
        for line in cpuinfo()
        if line.startswith("model name")
    )
    return next(names, "") or platform.processor() or platform.machine()


def cpuinfo() -> list[str]:
    """Return the lines of /proc/cpuinfo; none on systems other than Linux."""
    try:
        return Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return []


def fast_bfloat16() -> bool:
    """Return whether the CPU multiplies bfloat16 in hardware (AMX, or AVX512-bf16), and
    oneDNN may use it (ONEDNN_MAX_CPU_ISA).
    """
    able = torch.cpu._is_avx512_bf16_supported() or torch.cpu._is_amx_tile_supported()
    return able and torch.ops.mkldnn._is_mkldnn_bf16_supported()
