"""How fast memory can be read (memory.c). Knows arrays; knows nothing about what is in them."""

from __future__ import annotations

import ctypes
from ctypes import c_int64, c_uint64, c_void_p
from functools import cache
from pathlib import Path

from torch import Tensor

from foreword.native.compiler import compiled

UNIT = 4096
"""What is read is a multiple of this many bytes."""


@cache
def _library() -> ctypes.CDLL | None:
    made = compiled(Path(__file__).with_name("memory.c"))
    if isinstance(made, str):
        return None
    made.foreword_read.argtypes, made.foreword_read.restype = [c_void_p, c_int64], c_uint64
    return made


def read(memory: Tensor) -> float:
    """Read all of it, in one thread; returns a sum of it. Without a compiler torch reads, which can be slower."""
    library = _library()
    if library is None:
        return memory.sum().item()
    assert memory.nbytes % UNIT == 0, memory.nbytes
    return library.foreword_read(memory.data_ptr(), memory.nbytes)
