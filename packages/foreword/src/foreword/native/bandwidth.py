"""A memory read at full bandwidth (bandwidth.c)."""

from __future__ import annotations

import ctypes
from functools import cache

from torch import Tensor

from foreword.native import layout
from foreword.native.compiler import SOURCES, compiled

UNIT = 4096
"""Bytes. The size of the memory read must be a multiple of it."""


@cache
def _library() -> ctypes.CDLL | None:
    result = compiled(SOURCES / "bandwidth.c")
    if isinstance(result, str):
        return None
    layout.declare(result, {"read": "pl:u"})
    return result


def read(memory: Tensor) -> float:
    """Read the whole tensor in one thread and return its sum.

    Without a compiler torch does, which can be slower.
    """
    library = _library()
    if library is None:
        return memory.sum().item()
    assert memory.nbytes % UNIT == 0, memory.nbytes
    return library.foreword_read(memory.data_ptr(), memory.nbytes)
