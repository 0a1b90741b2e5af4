"""Default limit of a model's key-value cache: a share of the free memory."""

import ctypes
import os
from contextlib import suppress
from itertools import product
from pathlib import Path
from typing import Any

import torch

from foreword.model.architectures import head_dim, kv_heads
from foreword.model.layers import layer_count
from foreword.native import cgroups

SHARE = 4
"""One part in so many of the free memory is for the keys and values of one model."""
SCALE = 4
"""Bytes of the scale of a row of keys, or of values, of one head in 8 bits."""
UNKNOWN = 4 * 2**30
"""Bytes taken as free where the system does not tell."""
LIMITS = {"memory.max": "anon", "memory.limit_in_bytes": "rss"}
"""File of the limit -> entry of memory.stat: bytes that copy no file (cgroup 2, 1)."""


def most_tokens(hf: Any, kv: str | None = None) -> int:
    """Return how many tokens' keys and values fit into the share of the free memory of
    the model's device. Processes of one router divide main memory among them.
    """
    free = free_memory(hf.device)
    if hf.device.type == "cpu":
        free = cgroups.share_of(free, cgroups.NODES)
    return max(1, free // SHARE // max(1, key_bytes(hf, kv)))


def key_bytes(hf: Any, kv: str | None = None) -> int:
    """Return the bytes of a token's keys and values, in the dtype or form `kv`."""
    config = hf.config.get_text_config()
    # some models have heads of several sizes
    configs = getattr(config, "per_layer_config", None)
    if getattr(config, "is_encoder_decoder", False):
        configs = None  # they describe the encoder's layers
    layers = [config] * layer_count(config)
    if configs:
        layers = [configs[number] for number in range(len(layers))]
    size = hf.dtype.itemsize
    scale = 0
    if kv is not None:
        size = 1
        scale = SCALE
    return 2 * sum(
        kv_heads(layer) * (head_dim(layer) * size + scale) for layer in layers
    )


def free_memory(device: torch.device) -> int:
    """Return a device's free bytes; in main memory, within the container's limit."""
    if device.type == "cuda":
        return torch.cuda.mem_get_info(device)[0]
    free = UNKNOWN
    with suppress(OSError, ValueError, StopIteration):
        free = 1024 * _entry(Path("/proc/meminfo"), "MemAvailable:")
    with suppress(AttributeError, OSError, ValueError):
        pages = os.sysconf("SC_PHYS_PAGES")
        free = min(free, pages * os.sysconf("SC_PAGE_SIZE"))
    groups = cgroups.groups("memory", cgroups.ROOT, cgroups.OWN)
    for folder, (limit, taken) in product(groups, LIMITS.items()):
        # the file of the limit says "max" if there is none
        with suppress(OSError, ValueError, StopIteration):
            most = int((folder / limit).read_text(encoding="ascii"))
            used = _entry(folder / "memory.stat", taken)
            free = min(free, max(0, most - used))
    return free


def _entry(file: Path, name: str) -> int:
    """Return the number after a name that begins a line. Raises StopIteration."""
    lines = file.read_text(encoding="ascii").splitlines()
    entries = (line.split() for line in lines)
    return next(int(entry[1]) for entry in entries if entry[:1] == [name])


def return_freed() -> None:
    """Return freed memory to the system; the C library keeps much of it."""
    with suppress(AttributeError, OSError):  # only glibc has this
        ctypes.CDLL(None).malloc_trim(0)
