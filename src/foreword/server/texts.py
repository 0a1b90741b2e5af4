"""Provides the threads that read texts of requests: their bodies, their chats, their
tokens.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from threading import Event
from typing import TypeVar
from weakref import WeakValueDictionary

from foreword.api.requests import Requests
from foreword.wanted import dropped_when

LONG = 256 * 2**10
"""Bytes. Bodies from here on wait for each other, and no shorter one waits for them."""
T = TypeVar("T")


class Texts:
    """Two threads, one for short bodies and one for long ones; each tenant has one body
    in a thread at a time.

    So a long text holds up neither rounds nor the event loop, and the texts of other
    tenants by at most one of its own.
    """

    def __init__(self, requests: Callable[[], Requests]) -> None:
        """`requests` makes a builder of requests.

        Tokenizers are not thread-safe, so each thread has its own.
        """
        self.requests = requests()
        self._long: Requests | None = None
        self._make = requests
        self._threads = [
            ThreadPoolExecutor(1, f"foreword-texts-{name}")
            for name in ("short", "long")
        ]
        self._turns: WeakValueDictionary[tuple[str, bool], asyncio.Lock] = (
            WeakValueDictionary()
        )

    async def run(self, tenant: str, size: int, function: Callable[[Requests], T]) -> T:
        """Call a function with a builder of requests. `size`: bytes of the body that it
        reads.

        Cancelling the caller drops the call if it has not begun; in one that has,
        `check_wanted` raises Abandoned.
        """
        left = Event()
        is_long = size >= LONG
        lock = self._turns.get((tenant, is_long))
        if lock is None:
            lock = self._turns[tenant, is_long] = asyncio.Lock()
        make = self._long_requests if is_long else lambda: self.requests
        async with lock:
            loop = asyncio.get_running_loop()
            try:
                return await loop.run_in_executor(
                    self._threads[is_long], partial(_call, function, make, left)
                )
            finally:
                left.set()

    def _long_requests(self) -> Requests:
        """Return the builder of the thread for long bodies, which most servers never
        need.
        """
        if self._long is None:
            self._long = self._make()
        return self._long

    def close(self) -> None:
        """Drop what waits.

        What runs is not waited for: it may take seconds, and its answer has no reader.
        """
        for thread in self._threads:
            thread.shutdown(wait=False, cancel_futures=True)


def _call(
    function: Callable[[Requests], T], make: Callable[[], Requests], left: Event
) -> T:
    with dropped_when(left.is_set):
        return function(make())
