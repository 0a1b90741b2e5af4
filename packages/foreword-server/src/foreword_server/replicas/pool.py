"""Replicas of one model, and the choice of one for a request."""

import asyncio
from collections.abc import (
    AsyncIterator,
    Callable,
    Collection,
    Iterator,
    Mapping,
    Sequence,
)
from contextlib import AbstractAsyncContextManager, contextmanager, suppress
from dataclasses import dataclass, field
from http import HTTPStatus
from time import monotonic

from foreword.errors import ForewordError
from foreword_server.errors import ApiError, stopping
from foreword_server.replicas.charges import Charge, charge
from foreword_server.replicas.prefixes import Prefixes

SLACK = 4
"""Answers that a replica with the prompt may have more than the least busy one."""
BLOCKS = 16
"""Blocks of a prompt, 8 KiB or some 2,000 tokens: to read them again costs as much as
one answer more that shares the forwards.
"""
NOTICE_SECONDS = 1.0
"""Seconds within which the end of a replica is noticed."""
SCRAPE_SECONDS = 2.0
"""Seconds for the metrics of a replica: scrapers wait for ten in all."""
WAIT_SECONDS = 60.0
"""Seconds that a new request waits for a replica while none is ready."""
FAILURES = 5
"""Answers in a row. A replica that fails so many gets no request for a pause: it would
fail faster than others answer, and so seem the least busy one.
"""
LONGEST_PAUSE = 60.0
"""Seconds without requests: the first pause; each other is twice as long."""


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


class Refused(Lost):
    """A replica that takes no requests, as it stops."""


@dataclass(slots=True, eq=False)
class Replica:
    """One of several that give the same answers."""

    name: str
    ask: Callable[[Asked], AbstractAsyncContextManager[Answered]]
    """Yields the response to a request. Raises Lost if the other side ends."""
    ready: bool = False
    several: bool = False
    """Whether it stands for processes whose ends cannot be told apart."""
    running: int = 0
    """Answers that run or wait there."""
    requests: set[Charge] = field(default_factory=set)
    """Requests of the process that runs now."""
    prefixes: Prefixes = field(default_factory=Prefixes)
    _failures: int = 0
    """Answers that failed, since the last good one."""
    _paused_until: float = 0.0
    """monotonic() until which others come first."""

    @property
    def state(self) -> str:
        """What it does, in a word."""
        if not self.ready:
            return "starting"
        return "failing" if self._failures >= FAILURES else "ready"

    @property
    def is_paused(self) -> bool:
        """Whether it failed lately, so that requests go to others."""
        return self._paused_until > monotonic()

    @property
    def is_suspected(self) -> bool:
        """Whether it runs a request that may end it."""
        return any(one.quarantined for one in self.requests)

    def note(self, *, failed: bool) -> None:
        """Count an answer that failed, or a good one."""
        self._failures = self._failures + 1 if failed else 0
        self.pause()

    def pause(self) -> None:
        """Keep requests away from a replica that fails, until the next is tried."""
        beyond = self._failures - FAILURES
        pause = min(2.0 ** min(beyond, 10), LONGEST_PAUSE) if beyond >= 0 else 0.0
        self._paused_until = monotonic() + pause


class Pool:
    """The replicas of one model."""

    def __init__(
        self, replicas: Sequence[Replica], seconds: float = WAIT_SECONDS
    ) -> None:
        """`seconds`: most until a replica that ended is ready again."""
        self.replicas = replicas
        self._seconds = seconds
        self.draining = False
        """Whether the server stops: replicas that end are not started again."""
        self._changed = asyncio.Event()

    def mark(self, replica: Replica, *, ready: bool) -> None:
        """Note that a replica has become ready, or has ended."""
        replica.ready = ready
        replica.note(failed=False)
        if not ready:
            replica.prefixes.clear()
            charge(replica.requests)
            replica.requests = set()
        self._changed.set()

    @contextmanager
    def running(
        self, replica: Replica, answers: int, blocks: Sequence[bytes], request: Charge
    ) -> Iterator[None]:
        """Count a request of a replica while it runs, and the prompt that is read."""
        replica.running += answers
        replica.requests.add(request)
        replica.prefixes.add(blocks)
        try:
            yield
        finally:
            replica.running -= answers
            replica.requests.discard(request)
            self._changed.set()

    async def died(self, replica: Replica, request: Charge) -> bool:
        """Return whether the replica that lost a request has ended, once it is known
        what the request is charged with.
        """
        if replica.several:
            charge({request})
            return True
        with suppress(TimeoutError):
            async with asyncio.timeout(NOTICE_SECONDS):
                while request in replica.requests:
                    await self.change()
        return request not in replica.requests

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
        self, blocks: Sequence[bytes], avoided: Collection[Replica], request: Charge
    ) -> Replica:
        """Return the replica for a request, as soon as one is ready; for a suspect,
        one without another.

        `avoided`: replicas that lost it, the last choice. Raises ApiError
        503 if none becomes ready.
        """
        seconds = self._seconds if avoided else WAIT_SECONDS
        while True:
            ready = await self._some_ready(seconds)
            if request.quarantined:
                ready = [one for one in ready if one.several or not one.is_suspected]
            if ready:
                break
            await self.change()
        working = [one for one in ready if not one.is_paused] or ready
        others = [one for one in working if one not in avoided]
        replica = chosen(others or working, blocks)
        # one request tries a replica that failed; others follow a good answer
        replica.pause()
        return replica

    async def _some_ready(self, seconds: float) -> list[Replica]:
        try:
            async with asyncio.timeout(seconds):
                while not (ready := self.ready):
                    if self.draining:
                        raise stopping()
                    await self.change()
        except TimeoutError:
            raise ApiError(
                503,
                f"cannot serve this request: no replica was ready in "
                f"{seconds:g} s. Try again later",
                retry_after=5,
            ) from None
        return ready


def cost(running: int, matches: int) -> float:
    """Return what a request costs at a replica, in answers: all that run there, less
    what reading the matched blocks again would cost elsewhere.
    """
    return running - min(SLACK, matches / BLOCKS)


def chosen(replicas: Sequence[Replica], blocks: Sequence[bytes]) -> Replica:
    """Return the replica where a request costs least, the first among equals."""
    return min(
        replicas, key=lambda peer: cost(peer.running, peer.prefixes.matches(blocks))
    )


async def read_from(replica: Replica, path: str, seconds: float) -> str | None:
    """Return what a path of a replica answers with status 200; None of one that has
    just ended, or hangs for so many seconds.
    """
    request = Asked("GET", path, [(b"host", b"localhost")])
    try:
        async with asyncio.timeout(seconds):
            async with replica.ask(request) as answered:
                pieces = [piece async for piece in answered.pieces]
    except (Lost, TimeoutError):
        return None
    return b"".join(pieces).decode() if answered.status == HTTPStatus.OK else None


async def metrics_of_pools(pools: Mapping[str, Pool]) -> dict[str, str]:
    """Return the metrics of each replica that is ready, by its name."""
    replicas = {
        f"{model}{replica.name}": replica
        for model, pool in pools.items()
        for replica in pool.ready
    }
    reads = [
        read_from(replica, "/metrics", SCRAPE_SECONDS) for replica in replicas.values()
    ]
    texts = await asyncio.gather(*reads)
    return {name: text or "" for name, text in zip(replicas, texts, strict=True)}
