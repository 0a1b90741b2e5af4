"""Timers of forwards and memory bandwidth; they stop with the result on the host."""

import ctypes
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from time import perf_counter

import torch
from torch import Tensor

from foreword.model import Model, Read
from foreword.model.backend import Backend
from foreword.native import layout
from foreword.native.compiler import SOURCES, compiled
from foreword.native.huge_pages import Pages
from foreword.native.openmp import one_thread, threads

MEGABYTES, DEVICE_MEGABYTES = 256, 1024
"""MiB read to measure the bandwidth, on CPU and GPU: several last-level caches."""
UNIT = 4096
"""Bytes. The size of the memory read must be a multiple of it."""
TURNS = 3
"""Minimum number of turns, regardless of their time."""


class Memory:
    """A buffer on a device; a call reads it once and returns the bytes per second."""

    def __init__(self, device: torch.device) -> None:
        size = DEVICE_MEGABYTES if device.type == "cuda" else MEGABYTES
        self._held = torch.ones(size * 2**18, device=device)
        self._copy = torch.empty_like(self._held) if device.type == "cuda" else None
        if self._copy is None:
            # allocated as weights are
            self._held = Pages().empty(self._held.shape, self._held.dtype).fill_(1)

    def __call__(self) -> float:
        if self._copy is not None:
            return 2 * self._held.nbytes / _copied(self._held, self._copy)
        before = perf_counter()
        _all_of(self._held)
        return self._held.nbytes / (perf_counter() - before)


def turns(spend: float) -> Iterator[int]:
    """Yield turn numbers from 0: at least TURNS, then until `spend` seconds have
    passed. A turn is never cut short.
    """
    turn, started = 0, perf_counter()
    while turn < TURNS or perf_counter() - started < spend:
        yield turn
        turn += 1


def seconds(model: Model | Backend, reads: Sequence[Read]) -> float:
    """Return the seconds of one forward, until its first logit is on the host."""
    before = perf_counter()
    model.read(reads)[0, 0].item()
    return perf_counter() - before


def _copied(source: Tensor, target: Tensor) -> float:
    """Return the seconds of a copy by the device's clock: bytes are read, written."""
    with torch.cuda.device(source.device):
        start = torch.cuda.Event(enable_timing=True)
        end = torch.cuda.Event(enable_timing=True)
        start.record()
        target.copy_(source)
        end.record()
        end.synchronize()
        return 1e-3 * start.elapsed_time(end)


def _all_of(memory: Tensor) -> None:
    """Read all of `memory` with as many threads as torch has; torch's own would spin on
    into the next forward.
    """

    def alone(part: Tensor) -> None:
        with one_thread():
            read(part)

    parts = memory.view(-1, UNIT // memory.itemsize).chunk(threads())
    with ThreadPoolExecutor(len(parts)) as pool:
        list(pool.map(alone, parts))


@cache
def _library() -> ctypes.CDLL | None:
    result = compiled(SOURCES / "bandwidth.c")
    if isinstance(result, str):
        return None
    layout.declare(result, {"read": "pl:u"})
    return result


def read(memory: Tensor) -> float:
    """Read the whole tensor in one thread, at full bandwidth, and return its sum
    (csrc/bandwidth.c).

    Without a compiler torch does, which can be slower.
    """
    library = _library()
    if library is None:
        return memory.sum().item()
    assert memory.nbytes % UNIT == 0, memory.nbytes
    return library.foreword_read(memory.data_ptr(), memory.nbytes)
