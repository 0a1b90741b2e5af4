"""The OpenMP runtime that torch has loaded: its threads are the ones to compute with, for there should be no others.

Knows the names of runtimes; knows nothing about what is computed.
"""

from __future__ import annotations

import ctypes
import re
from functools import cache
from pathlib import Path
from typing import Any

import torch

RUNTIMES = re.compile(r"/lib(gomp|iomp5|omp)[^/]*\.so[^/]*$")
"""Those of GCC, Intel and LLVM; the last two offer GCC's entry points as well."""


@cache
def parallel() -> Any | None:
    """GOMP_parallel(body, data, threads, flags) of that runtime; None where torch works without one."""
    if not torch.backends.openmp.is_available():
        return None
    try:
        lines = Path("/proc/self/maps").read_text().splitlines()
    except OSError:
        return None
    for path in dict.fromkeys(line.partition("/")[1] + line.partition("/")[2] for line in lines):
        if RUNTIMES.search(path):
            found = ctypes.CDLL(path)  # loaded already, so this is the very same one
            if hasattr(found, "GOMP_parallel"):
                return ctypes.cast(found.GOMP_parallel, ctypes.c_void_p)
    return None
