"""Keeps torch's own threads off the cores while our C code uses them.

After each operation that torch does in parallel, the threads of its OpenMP runtime spin for milliseconds, waiting for
the next. A forward of ours that begins meanwhile shares the cores with them: one of 15 ms was measured to take 22.
Between our forwards torch has little to do, so it does that with one thread.

Knows OpenMP runtimes; knows nothing about what is computed.
"""

from __future__ import annotations

import ctypes
import re
import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import cache
from pathlib import Path

import torch
from torch import nn

RUNTIMES = re.compile(r"/lib(gomp|iomp5|omp)[^/]*\.so[^/]*$")
"""Those of GCC, Intel and LLVM."""
HEAVY = 64 * 2**20
"""Bytes of weights from which on a part of a model is worth all of torch's threads, in whatever precision it comes.

They spin on after their work, on the cores that the target needs next: with a head of 40 MB each round took 5 ms more.
"""


class _Held(threading.local):
    """How many threads torch had in this thread before it was given one; 0 where it has them all."""

    threads = 0


_held = _Held()


def threads() -> int:
    """Threads that a computation may use here, whether torch is kept to one or not."""
    return _held.threads or torch.get_num_threads()


@contextmanager
def one_thread() -> Iterator[None]:
    """Torch computes with one thread meanwhile, in this Python thread and in no other."""
    limit, before = _limit(), torch.get_num_threads()
    if limit is None or before == 1:
        yield
        return
    _held.threads = before
    limit(1)
    try:
        yield
    finally:
        limit(before)
        _held.threads = 0


@contextmanager
def all_threads() -> Iterator[None]:
    """Within `one_thread`: torch has all of its threads again, for something that needs them."""
    limit, before = _limit(), _held.threads
    if limit is None or not before:
        yield
        return
    _held.threads = 0
    limit(before)
    try:
        yield
    finally:
        limit(1)
        _held.threads = before


def threads_for(part: nn.Module) -> Callable[[], AbstractContextManager[None]]:
    """What to be inside of while a part computes. The threads of a small one would be in the way of its target."""
    return all_threads if sum(weight.nbytes for weight in part.parameters()) > HEAVY else nullcontext


@cache
def _limit() -> ctypes._NamedFuncPointer | None:
    """omp_set_num_threads of the runtime that torch has loaded; it sets the number of the calling thread alone.

    (`torch.set_num_threads` would also change what threads begin with that start meanwhile.) None where there is none.
    """
    if not torch.backends.openmp.is_available():
        return None
    try:
        lines = Path("/proc/self/maps").read_text().splitlines()
    except OSError:
        return None
    paths = dict.fromkeys("/" + line.partition("/")[2] for line in lines)
    found = (ctypes.CDLL(path) for path in paths if RUNTIMES.search(path))  # loaded already: the very same ones
    return next((runtime.omp_set_num_threads for runtime in found if hasattr(runtime, "omp_set_num_threads")), None)
