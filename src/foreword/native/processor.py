"""What the processor is called. Knows the system; knows nothing about models."""

from __future__ import annotations

import platform
from pathlib import Path


def processor() -> str:
    """Its name as its maker gives it, where the system tells; else the name of its kind."""
    names = (line.partition(":")[2].strip() for line in told() if line.startswith("model name"))
    return next(names, "") or platform.processor() or platform.machine()


def told() -> list[str]:
    """What Linux says of the processor, line by line; nothing on other systems."""
    try:
        return Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return []
