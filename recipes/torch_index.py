"""Choose where pip finds torch: CPU builds on Linux without an NVIDIA GPU, if their
index answers; else the usual index.

    python recipes/torch_index.py    prints an option for pip, or nothing
"""

from __future__ import annotations

import shutil
import sys
from collections.abc import Iterable
from pathlib import Path
from threading import Thread
from urllib.request import Request, urlopen

CPU_INDEX = "https://download.pytorch.org/whl/cpu"
"""On Linux the usual index has CUDA builds only, which take gigabytes."""
GPU_FILES = (Path("/proc/driver/nvidia/version"), Path("/dev/nvidia0"))
"""Any of them exists where the driver of an NVIDIA GPU is loaded."""
SECONDS = 4.0
"""Longest wait for the index: a machine without a network may get no answer."""


def has_gpu(files: Iterable[Path] = GPU_FILES, tool: str = "nvidia-smi") -> bool:
    """Return whether this machine has an NVIDIA GPU, or a tool that says so."""
    return shutil.which(tool) is not None or any(file.exists() for file in files)


def answers(index: str, seconds: float = SECONDS) -> bool:
    """Return whether an index has a page for torch that can be read in time."""
    found: list[int] = []

    def ask() -> None:
        request = Request(f"{index}/torch/", method="HEAD")
        try:
            with urlopen(request, timeout=seconds) as reply:
                found.append(reply.status)
        except (OSError, ValueError):
            return

    # A look-up of the host's name has no time limit of its own.
    asking = Thread(target=ask, daemon=True)
    asking.start()
    asking.join(seconds)
    return bool(found)


def option(index: str = CPU_INDEX, *, gpu: bool) -> tuple[str, str]:
    """Return the option for pip, empty for the usual index, and the reason."""
    if gpu:
        return "", "torch: usual index, as there is an NVIDIA GPU"
    if not answers(index):
        return "", f"torch: usual index, as {index} does not answer"
    return f"--index-url {index}", "torch: CPU build, as there is no NVIDIA GPU"


def main() -> None:
    """Print the option to stdout and the reason to stderr."""
    # The usual index has CPU builds for other systems.
    if sys.platform != "linux":
        return
    chosen, reason = option(gpu=has_gpu())
    sys.stdout.write(chosen)
    sys.stderr.write(f"{reason}\n")


if __name__ == "__main__":
    main()
