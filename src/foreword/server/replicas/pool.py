"""Provides the replicas of one model, and the choice among them."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Collection, Iterator, Sequence
from contextlib import AbstractAsyncContextManager, contextmanager, suppress
from dataclasses import dataclass, field
from typing import Protocol, runtime_checkable

from foreword.errors import ForewordError
from foreword.server.errors import ApiError
from foreword.server.replicas.prefixes import Prefixes

SLACK = 4
"""Answers. A replica that has read a prompt may have so many more than the least busy
one.
"""
BLOCKS = 16
"""Blocks of a prompt, 8 KiB or some 2,000 tokens: to read them again costs as much as
one answer more that shares the forwards.
"""
NOTICE_SECONDS = 1.0
"""Seconds within which the end of a replica is noticed."""
WAIT_SECONDS = 60.0
"""Seconds that a request waits for a replica while none is ready."""


@dataclass(frozen=True, slots=True)
class Asked:
    """A request, as a replica gets it."""

    method: str
    target: str
    """Path and query."""
    headers: list[tuple[bytes, bytes]]
    body: bytes = b""
    blocks: Sequence[bytes] = ()
    """Beginnings of its prompt, by which a replica is chosen."""


@dataclass(frozen=True, slots=True)
class Answered:
    """The response of a replica."""

    status: int
    headers: Sequence[tuple[bytes, bytes]]
    pieces: AsyncIterator[bytes]


class Lost(ForewordError):
    """A replica that ended, or cannot be reached."""


class Unreachable(Lost):
    """A replica that takes no connection: it has just ended, or starts."""


@runtime_checkable
class Askable(Protocol):
    """Whatever answers requests as a server does."""

    def ask(self, asked: Asked) -> AbstractAsyncContextManager[Answered]:
        """Yield the response to a request. Raises Lost if the other side ends."""
        ...


@dataclass(slots=True, eq=False)
class Replica:
    """One of several that give the same answers."""

    name: str
    engine: Askable
    ready: bool = False
    running: int = 0
    """Answers that run or wait there."""
    prefixes: Prefixes = field(default_factory=Prefixes)

    @contextmanager
    def busy(self, answers: int, blocks: Sequence[bytes]) -> Iterator[None]:
        """Count answers while they run, and the prompt that is read."""
        self.running += answers
        self.prefixes.add(blocks)
        try:
            yield
        finally:
            self.running -= answers


class Pool:
    """The replicas of one model."""

    def __init__(self, replicas: Sequence[Replica]) -> None:
        self.replicas = replicas
        self._changed = asyncio.Event()

    def mark(self, replica: Replica, *, ready: bool) -> None:
        """Note that a replica has become ready, or has ended."""
        replica.ready = ready
        if not ready:
            replica.prefixes.clear()
        self._changed.set()

    async def change(self) -> None:
        """Wait until a replica becomes ready or ends, or for NOTICE_SECONDS."""
        self._changed.clear()
        with suppress(TimeoutError):
            async with asyncio.timeout(NOTICE_SECONDS):
                await self._changed.wait()

    @property
    def ready(self) -> list[Replica]:
        """Replicas that take requests."""
        return [one for one in self.replicas if one.ready]

    async def pick(
        self,
        blocks: Sequence[bytes] = (),
        avoided: Collection[Replica] = (),
    ) -> Replica:
        """Return the replica for a request, as soon as one is ready.

        `avoided`: taken only if no other is ready. Raises ApiError 503 if none becomes
        ready.
        """
        try:
            async with asyncio.timeout(WAIT_SECONDS):
                while not self.ready:
                    self._changed.clear()
                    await self._changed.wait()
        except TimeoutError:
            raise ApiError(
                503,
                f"cannot serve this request: no replica was ready in "
                f"{WAIT_SECONDS:g} s. Try again later",
                retry_after=5,
            ) from None
        ready = self.ready
        others = [one for one in ready if one not in avoided]
        return chosen(others or ready, blocks)


def cost(running: int, matches: int) -> float:
    """Return what a request costs at a replica, in answers: those that run there, less
    what reading the matched blocks again would cost elsewhere.
    """
    return running - min(SLACK, matches / BLOCKS)


def chosen(replicas: Sequence[Replica], blocks: Sequence[bytes]) -> Replica:
    """Return the replica where a request costs least, the first among equals."""
    return min(
        replicas, key=lambda one: cost(one.running, one.prefixes.matches(blocks))
    )


async def metrics_of(replica: Replica) -> str:
    """Return the metrics of a replica; none of one that has just ended."""
    asked = Asked("GET", "/metrics", [(b"host", b"localhost")])
    try:
        async with replica.engine.ask(asked) as answered:
            pieces = [piece async for piece in answered.pieces]
    except Lost:
        return ""
    return b"".join(pieces).decode()
