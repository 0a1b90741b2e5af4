"""The name and features of the processor, and how many this process may use."""

import os
import platform
from pathlib import Path

from foreword.native import cgroups


def processor() -> str:
    """Return the vendor's name of the processor, else its architecture."""
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
    import torch  # which replicas import after they are bound to their cores

    able = torch.cpu._is_avx512_bf16_supported() or torch.cpu._is_amx_tile_supported()
    return able and torch.ops.mkldnn._is_mkldnn_bf16_supported()


def cores(root: Path = cgroups.ROOT, file: Path = cgroups.OWN) -> int:
    """Return how many processors this process may keep busy: those it is bound to, but
    no more than the quota of its container.

    Rounded down, to 1 at least: threads wait for each other, so all wait for one that
    has used up its time.
    """
    affinity = getattr(os, "sched_getaffinity", None)
    bound = len(affinity(0)) if affinity else os.cpu_count() or 1
    return max(1, int(min(bound, cgroups.processors(root, file))))
