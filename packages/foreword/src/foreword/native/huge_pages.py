"""Memory in huge pages, for weights that every forward reads completely; or in a file,
while it is being written.

With 4 KB pages the processor translates an address every 64 cache lines, and its
prefetcher stops there. Where the system has no huge pages, this is plain memory.
"""

import math
import mmap
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from pathlib import Path
from tempfile import TemporaryFile
from threading import Lock

import torch
from jaxtyping import UInt8
from torch import Tensor

from foreword.files import room

LARGE = 2 * 2**20
"""Bytes of a huge page on x86-64 and on most arm64."""
BLOCK = 64 * 2**20
"""Bytes mapped at a time. Pages that are never written take no memory."""
LINE = 64
"""Bytes of a cache line, to which tensors are aligned."""
_folder: ContextVar[Path | None] = ContextVar("folder", default=None)


@contextmanager
def pages_in(folder: Path | None) -> Iterator[None]:
    """Let all `Pages` that are made inside lie in unnamed files of a folder, which the
    system may write out; None: not.

    Raises DiskError, where memory is requested, if the folder has no room.
    """
    before = _folder.set(folder)
    try:
        yield
    finally:
        _folder.reset(before)


class Pages:
    """An allocator of cache-line-aligned tensors in huge pages, for several threads.

    A block is freed with its last tensor.
    """

    def __init__(self) -> None:
        self.folder = _folder.get()
        self._lock = Lock()
        self._block = torch.empty(0, dtype=torch.uint8)
        self._used = 0

    def empty(self, shape: Sequence[int], dtype: torch.dtype) -> Tensor:
        """Return a contiguous, uninitialized tensor of this shape and dtype."""
        with self._lock:
            taken = self._take(math.prod(shape) * dtype.itemsize)
        return taken.view(dtype).view(shape)

    def _take(self, size: int) -> UInt8[Tensor, "size"]:
        start = -(-self._used // LINE) * LINE
        if start + size > len(self._block):
            self._block, start = _block(max(size, BLOCK), self.folder), 0
        self._used = start + size
        return self._block[start : self._used]


def _block(size: int, folder: Path | None) -> UInt8[Tensor, "size"]:
    """Return a new block, aligned to a huge page, or in a file."""
    if folder is not None:
        with TemporaryFile(dir=folder) as file:
            with room(folder):  # now: a page that finds the disk full ends the process
                os.posix_fallocate(file.fileno(), 0, size) if hasattr(
                    os, "posix_fallocate"
                ) else file.truncate(size)
            return torch.frombuffer(mmap.mmap(file.fileno(), size), dtype=torch.uint8)
    memory = mmap.mmap(-1, size + LARGE, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    with suppress(AttributeError, OSError):  # not on this system
        memory.madvise(mmap.MADV_HUGEPAGE)
    whole = torch.frombuffer(memory, dtype=torch.uint8)
    skipped = -whole.data_ptr() % LARGE
    return whole[skipped : skipped + size]
