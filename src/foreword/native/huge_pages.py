"""Memory in huge pages, for weights that every forward reads completely.

With 4 KB pages the processor translates an address every 64 cache lines, and its prefetcher stops there. Where the
system has no huge pages, this is plain memory.
"""

from __future__ import annotations

import math
import mmap
from collections.abc import Sequence as List
from contextlib import suppress

import torch
from jaxtyping import UInt8
from torch import Tensor

LARGE = 2 * 2**20
"""Bytes of a huge page on x86-64 and on most arm64."""
BLOCK = 64 * 2**20
"""Bytes mapped at a time. Pages that are never written take no memory."""
LINE = 64
"""Bytes of a cache line, to which tensors are aligned."""


class Pages:
    """An allocator of cache-line-aligned tensors in huge pages. A block is freed with its last tensor."""

    def __init__(self) -> None:
        self._block = torch.empty(0, dtype=torch.uint8)
        self._used = 0

    def empty(self, shape: List[int], dtype: torch.dtype) -> Tensor:
        """Return a contiguous, uninitialized tensor of this shape and dtype."""
        return self._take(math.prod(shape) * dtype.itemsize).view(dtype).view(shape)

    def _take(self, size: int) -> UInt8[Tensor, "size"]:
        start = -(-self._used // LINE) * LINE
        if start + size > len(self._block):
            self._block, start = _block(max(size, BLOCK)), 0
        self._used = start + size
        return self._block[start : self._used]


def _block(size: int) -> UInt8[Tensor, "size"]:
    """Return a new block, aligned to a huge page."""
    memory = mmap.mmap(-1, size + LARGE, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    with suppress(AttributeError, OSError):  # not on this system
        memory.madvise(mmap.MADV_HUGEPAGE)
    whole = torch.frombuffer(memory, dtype=torch.uint8)
    skipped = -whole.data_ptr() % LARGE
    return whole[skipped : skipped + size]
