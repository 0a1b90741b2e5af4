"""Limits on torch's OpenMP threads while our C code uses the cores.

After each parallel operation of torch, its OpenMP threads spin for milliseconds,
waiting for the next one. A C forward that starts meanwhile shares the cores with them:
22 ms instead of 15 were measured. Between C forwards torch has little to do, so it uses
one thread.
"""

import ctypes
import os
import re
import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import cache
from pathlib import Path
from typing import TypeVar

import torch
from torch import nn

from foreword.native.cpu import cores

Item = TypeVar("Item")
Result = TypeVar("Result")
RUNTIMES = re.compile(r"/lib(gomp|iomp5|omp)[^/]*\.so[^/]*$")
"""File names of the OpenMP runtimes of GCC, Intel and LLVM."""
HEAVY = 64 * 2**20
"""Bytes of weights above which a module uses all of torch's threads, in any precision.

The threads spin on afterwards, on cores that the target needs next: with a head of 40
MB each round took 5 ms more.
"""


class _Held(threading.local):
    """Torch's thread count in this Python thread before it was limited to one; 0 if it
    is not limited.
    """

    threads = 0


_held = _Held()


def threads() -> int:
    """Return the threads a computation may use, even if torch is limited to one."""
    return _held.threads or torch.get_num_threads()


def limit_threads() -> None:
    """Have torch use no more threads than this process may keep busy: it counts the
    processors, and a container may have a quota of their time.
    """
    if "OMP_NUM_THREADS" not in os.environ and torch.get_num_threads() > cores():
        torch.set_num_threads(cores())


@contextmanager
def one_thread() -> Iterator[None]:
    """Limit torch to one thread inside the block, in this Python thread only."""
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
    """Give torch all of its threads back inside the block, within `one_thread`."""
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


def in_parallel(
    function: Callable[[Item], Result], items: Iterable[Item]
) -> Iterator[Result]:
    """Yield the results for items, in order, by as many Python threads as torch has,
    with one of torch's threads each.

    Torch splits few of its operations on bytes. Items are taken a little ahead, so that
    few results wait.
    """

    # threads have a mode of their own, and refuse to change tensors of the other one
    inference = torch.is_inference_mode_enabled()

    def alone(item: Item) -> Result:
        with one_thread(), torch.inference_mode(inference):
            return function(item)

    count = threads()
    ahead: deque[Future[Result]] = deque()
    with ThreadPoolExecutor(count) as pool:
        for item in items:
            ahead.append(pool.submit(alone, item))
            if len(ahead) > 2 * count:
                yield ahead.popleft().result()
        while ahead:
            yield ahead.popleft().result()


def threads_for(part: nn.Module) -> Callable[[], AbstractContextManager[None]]:
    """Return the context to compute a module in: all threads, or one below `HEAVY`."""
    size = sum(weight.nbytes for weight in part.parameters())
    return all_threads if size > HEAVY else nullcontext


@cache
def _limit() -> "ctypes._NamedFuncPointer | None":
    """Return omp_set_num_threads of the runtime that torch loaded; None if absent. It
    affects the calling thread only.

    (`torch.set_num_threads` would also change the default of threads that start
    meanwhile.)
    """
    if not torch.backends.openmp.is_available():
        return None
    try:
        lines = Path("/proc/self/maps").read_text().splitlines()
    except OSError:
        return None
    files = dict.fromkeys("/" + line.partition("/")[2] for line in lines)
    torchs = str(Path(torch.__file__).parent)
    # other packages bring runtimes of their own
    paths = sorted(files, key=lambda path: not path.startswith(torchs))
    # already loaded: same handles
    runtimes = (ctypes.CDLL(path) for path in paths if RUNTIMES.search(path))
    for runtime in runtimes:
        if hasattr(runtime, "omp_set_num_threads"):
            return runtime.omp_set_num_threads
    return None
