"""Memory in large pages, for what every forward reads from end to end: with pages of 4 KB the processor looks up an
address for every 64 lines it fetches, and stops fetching ahead there.

Knows the operating system; knows nothing about what is kept in it. Where there are no large pages it is plain memory.
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
"""Bytes of a large page on x86-64 and on most arm64."""
BLOCK = 64 * 2**20
"""Bytes asked for at a time. What is not written to takes no memory."""
LINE = 64


class Pages:
    """Hands out tensors one after the other, each where a cache line begins. A block is freed with its last tensor."""

    def __init__(self) -> None:
        self._block = torch.empty(0, dtype=torch.uint8)
        self._used = 0

    def empty(self, shape: List[int], dtype: torch.dtype) -> Tensor:
        """Memory for a tensor of this shape and dtype, contiguous; what it holds is undefined."""
        return self._take(math.prod(shape) * dtype.itemsize).view(dtype).view(shape)

    def _take(self, size: int) -> UInt8[Tensor, "size"]:
        start = -(-self._used // LINE) * LINE
        if start + size > len(self._block):
            self._block, start = _block(max(size, BLOCK)), 0
        self._used = start + size
        return self._block[start : self._used]


def _block(size: int) -> UInt8[Tensor, "size"]:
    """Begins where a large page begins."""
    memory = mmap.mmap(-1, size + LARGE, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    with suppress(AttributeError, OSError):  # not on this system
        memory.madvise(mmap.MADV_HUGEPAGE)
    whole = torch.frombuffer(memory, dtype=torch.uint8)
    skipped = -whole.data_ptr() % LARGE
    return whole[skipped : skipped + size]
