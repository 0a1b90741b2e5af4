"""What figures were taken on: the machine and the versions. Knows the system; knows nothing about models."""

from __future__ import annotations

import os
import platform

import torch
import transformers

import foreword
from foreword.model.linear import fast_bfloat16
from foreword.native.processor import processor


def machine() -> dict[str, str | int | float | bool]:
    """Processor, cores this process may use, threads torch uses, memory in GiB, and bfloat16 in hardware."""
    affinity = getattr(os, "sched_getaffinity", None)
    return {
        "cpu": processor(),
        "cores": len(affinity(0)) if affinity else os.cpu_count() or 1,
        "threads": torch.get_num_threads(),
        "memory_gib": _memory(),
        "bfloat16": fast_bfloat16(),
    }


def versions() -> dict[str, str]:
    """Versions of what the figures depend on."""
    return {
        "foreword": foreword.__version__,
        "torch": torch.__version__,
        "transformers": transformers.__version__,
        "python": platform.python_version(),
    }


def _memory() -> float:
    try:
        total = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (AttributeError, OSError, ValueError):  # not every system tells
        return 0.0
    return round(total / 2**30, 1)
