"""The machine and the software versions that a report records."""

import os
import platform
from importlib.metadata import version

import torch

from foreword.native.cpu import cores, fast_bfloat16, processor
from foreword.version import VERSION


def machine(device: str = "cpu") -> dict[str, str | int | float | bool]:
    """Return the processor, usable cores, torch's threads, memory in GiB, whether
    bfloat16 runs in hardware, and the name of the GPU, if `device` is one.
    """
    gpu = (
        {"gpu": torch.cuda.get_device_name(device)} if device.startswith("cuda") else {}
    )
    return {
        **gpu,
        "cpu": processor(),
        "cores": cores(),
        "threads": torch.get_num_threads(),
        "memory_gib": _memory(),
        "bfloat16": fast_bfloat16(),
    }


def versions() -> dict[str, str]:
    """Return the versions of the packages that the figures depend on."""
    return {
        "foreword": VERSION,
        "torch": torch.__version__,
        "transformers": version("transformers"),
        "python": platform.python_version(),
    }


def _memory() -> float:
    try:
        total = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (AttributeError, OSError, ValueError):  # not available on every system
        return 0.0
    return round(total / 2**30, 1)
