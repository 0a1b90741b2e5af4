"""Provides the models behind a router: one that is always there, or several that are
loaded when a request names them, and unloaded when others need their memory.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from time import monotonic, time
from typing import Literal, Protocol, runtime_checkable

from foreword.errors import ForewordError, InvalidRequest
from foreword.server.errors import ApiError
from foreword.server.log import Log
from foreword.server.replicas.catalog import Entry
from foreword.server.replicas.pool import WAIT_SECONDS, Pool, metrics_of
from foreword.server.replicas.supervise import Supervisor
from foreword.server.service import HOSTED

GIB = 2**30
OVERHEAD = 1.2
"""Memory of a model that was never loaded, by the size of its files: some keys and
values come on top.
"""
FAILED_SECONDS = 300.0
"""Seconds. A model that could not be loaded is not tried again before: each try may
unload another one.
"""
PROGRAM = 400 * 2**20
"""Bytes of a process without a model: torch and transformers take so much."""
DEFAULT = "default"
"""Name of the first model."""
Status = Literal["unloaded", "loading", "loaded"]


@runtime_checkable
class Models(Protocol):
    """Whatever finds the replicas of a request's model."""

    def lease(
        self, name: str | None, *, load: bool = True
    ) -> AbstractAsyncContextManager[Pool]:
        """Yield the replicas of a model, which stays loaded meanwhile. `load`: whether
        it may be loaded for this.

        Raises ApiError for a name that is not known, or a model that cannot be loaded.
        """
        ...

    @property
    def pools(self) -> dict[str, Pool]:
        """Replicas of the loaded models, by the beginning of their names."""
        ...

    @property
    def ready(self) -> bool:
        """Whether requests can be answered."""
        ...

    @property
    def state(self) -> dict[str, dict[str, str]]:
        """What each replica or model does."""
        ...

    @property
    def restarts(self) -> int:
        """Replicas that were started again."""
        ...

    async def metrics(self) -> dict[str, str]:
        """Return the metrics of each replica, in Prometheus' text, by its name."""
        return await metrics_of_pools(self.pools)


async def metrics_of_pools(pools: Mapping[str, Pool]) -> dict[str, str]:
    """Return the metrics of each replica that is ready, by its name."""
    return {
        f"{model}{one.name}": await metrics_of(one)
        for model, pool in pools.items()
        for one in pool.ready
    }


@dataclass(frozen=True, slots=True)
class OneModel(Models):
    """The only model: replicas resolve its name."""

    supervisor: Supervisor

    @asynccontextmanager
    async def lease(
        self, name: str | None, *, load: bool = True
    ) -> AsyncIterator[Pool]:
        """Yield the replicas."""
        yield self.supervisor.pool

    @property
    def pools(self) -> dict[str, Pool]:
        """The replicas."""
        return {"": self.supervisor.pool}

    @property
    def ready(self) -> bool:
        """Whether a replica is ready."""
        return bool(self.supervisor.pool.ready)

    @property
    def state(self) -> dict[str, dict[str, str]]:
        """What each replica does."""
        states = {
            one.name: "ready" if one.ready else "starting"
            for one in self.supervisor.pool.replicas
        }
        return {"replicas": states}

    @property
    def restarts(self) -> int:
        """Replicas that were started again."""
        return self.supervisor.restarts


@dataclass(slots=True, eq=False)
class Hosted:
    """A model of the catalog."""

    entry: Entry
    created: int = field(default_factory=lambda: int(time()))
    status: Status = "unloaded"
    supervisor: Supervisor | None = None
    users: int = 0
    """Requests that it answers."""
    used: float = 0.0
    """monotonic() at the end of the last one."""
    measured: int = 0
    """Bytes that it took when it was loaded last."""
    failure: tuple[float, ApiError] | None = None
    """monotonic() of the last try that no other could mend, and its reason."""
    lock: asyncio.Lock = field(default_factory=asyncio.Lock)
    """Held while it is loaded or unloaded."""

    @property
    def bytes(self) -> int:
        """Bytes that it takes, or is expected to take."""
        expected = int(OVERHEAD * self.entry.bytes) + PROGRAM
        return self.measured or expected

    @property
    def idle(self) -> bool:
        """Whether it can be unloaded now."""
        return (
            self.status == "loaded"
            and not self.users
            and not self.entry.keep
            and not self.lock.locked()
        )


class ManyModels(Models):
    """Models that are loaded on demand."""

    def __init__(
        self,
        entries: Sequence[Entry],
        start: Callable[[Entry], Supervisor],
        log: Log,
        *,
        memory: int,
        seconds: float,
    ) -> None:
        """`start` makes the processes of a model. `memory`: bytes for all that are
        loaded. `seconds`: one that was not used so long is unloaded; 0: none is.

        Raises InvalidRequest for a model that does not fit in the memory alone.
        """
        self.hosted = [Hosted(entry) for entry in entries]
        self._by_name = {name: one for one in self.hosted for name in one.entry.names}
        self._start = start
        self._log = log
        self._memory = memory
        self._seconds = seconds
        self._freed = asyncio.Event()
        """Set when a model has become idle or was unloaded."""
        self._timers: dict[str, asyncio.TimerHandle] = {}
        self._ends: set[asyncio.Task[None]] = set()
        self._restarts = 0
        self._closing = False
        for one in self.hosted:
            self._check_size(one)

    @asynccontextmanager
    async def lease(
        self, name: str | None, *, load: bool = True
    ) -> AsyncIterator[Pool]:
        """Yield the replicas of a model, after loading it if need be."""
        hosted = self.named(name)
        self._stop_timer(hosted)
        hosted.users += 1
        try:
            async with hosted.lock:
                if hosted.supervisor is None:
                    if not load:
                        raise _none_loaded()
                    await self._load(hosted)
            assert hosted.supervisor is not None
            yield hosted.supervisor.pool
        finally:
            hosted.users -= 1
            hosted.used = monotonic()
            if not hosted.users:
                self._freed.set()
                self._start_timer(hosted)

    async def start(self) -> None:
        """Load the models that stay. Raises InvalidRequest if one cannot be."""
        for one in self.hosted:
            if one.entry.keep:
                async with one.lock:
                    await self._load(one)

    async def stop(self) -> None:
        """Unload all."""
        self._closing = True
        for timer in self._timers.values():
            timer.cancel()
        ends = [self._unload(one) for one in self.hosted]
        await asyncio.gather(*ends, *self._ends)

    @property
    def pools(self) -> dict[str, Pool]:
        """Replicas of the loaded models."""
        return {
            f"{one.entry.name}/": one.supervisor.pool
            for one in self.hosted
            if one.supervisor is not None and one.status == "loaded"
        }

    @property
    def restarts(self) -> int:
        """Replicas that were started again."""
        running = [one.supervisor for one in self.hosted if one.supervisor]
        return self._restarts + sum(one.restarts for one in running)

    @property
    def ready(self) -> bool:
        """Whether requests can be answered: a model is loaded for one."""
        return True

    @property
    def state(self) -> dict[str, dict[str, str]]:
        """What each model does."""
        return {"models": {one.entry.name: one.status for one in self.hosted}}

    def named(self, name: str | None) -> Hosted:
        """Return the model of a name; the first one for names of hosted models. None:
        one that is loaded.

        Raises ApiError 404 for a name that is not known.
        """
        if name is None:
            loaded = [one for one in self.hosted if one.status == "loaded"]
            return (loaded or self.hosted)[0]
        plain = name.rpartition(":")[0] or name
        found = self._by_name.get(name) or self._by_name.get(plain)
        if found is not None:
            return found
        if name == DEFAULT or name.startswith(HOSTED):
            return self.hosted[0]
        known = ", ".join(self._by_name)
        raise ApiError(
            404,
            f"cannot use model {name!r}: this server has {known}. Name one of "
            "them, or NAME:METHOD",
            param="model",
            code="model_not_found",
        )

    async def _load(self, hosted: Hosted) -> None:
        """Load a model. The caller holds its lock."""
        name = hosted.entry.name
        if hosted.failure and monotonic() < hosted.failure[0] + FAILED_SECONDS:
            raise hosted.failure[1]
        await self._make_room(hosted)
        hosted.status = "loading"
        before = monotonic()
        supervisor = self._start(hosted.entry)
        try:
            await supervisor.start()
        except ForewordError as error:
            hosted.status = "unloaded"
            never = isinstance(error, InvalidRequest)
            failure = ApiError(
                400 if never else 503,
                f"cannot load model {name!r}: {error}",
                param="model",
                code="model_not_loaded",
            )
            if never:
                hosted.failure = monotonic(), failure
            raise failure from error
        except BaseException:
            hosted.status = "unloaded"
            raise
        hosted.supervisor = supervisor
        hosted.status = "loaded"
        hosted.measured = supervisor.memory
        self._log.event(
            "model loaded",
            model=name,
            seconds=round(monotonic() - before, 1),
            gib=round(hosted.measured / GIB, 2),
        )

    async def _make_room(self, wanted: Hosted) -> None:
        """Unload models, the one unused longest first, until another one fits."""
        try:
            async with asyncio.timeout(WAIT_SECONDS):
                while self._taken(wanted) + wanted.bytes > self._memory:
                    self._freed.clear()
                    idle = [one for one in self.hosted if one.idle]
                    if idle:
                        await self._unload(min(idle, key=lambda one: one.used))
                    else:
                        await self._freed.wait()
        except TimeoutError:
            raise ApiError(
                503,
                f"cannot load model {wanted.entry.name!r}: the others that are loaded "
                "answer requests. Try again later",
                code="overloaded",
                retry_after=10,
            ) from None

    def _taken(self, wanted: Hosted) -> int:
        """Return the bytes of the other models that are loaded or being loaded; keys
        and values of long prompts have made some larger.
        """
        taken = 0
        for one in self.hosted:
            if one is wanted or one.status == "unloaded":
                continue
            if one.supervisor is not None:
                one.measured = one.supervisor.memory
            taken += one.bytes
        return taken

    async def _unload(self, hosted: Hosted) -> None:
        async with hosted.lock:
            supervisor = hosted.supervisor
            # a request may have come while the lock was waited for
            if supervisor is None or (hosted.users and not self._closing):
                return
            hosted.supervisor = None
            hosted.status = "unloaded"
            await supervisor.stop()
            self._restarts += supervisor.restarts
            self._freed.set()
            self._log.event("model unloaded", model=hosted.entry.name)

    def _check_size(self, hosted: Hosted) -> None:
        if hosted.bytes > self._memory:
            raise InvalidRequest(
                f"cannot serve model {hosted.entry.name!r}: it takes about "
                f"{hosted.bytes / GIB:.1f} GiB, and the models may take "
                f"{self._memory / GIB:.1f}. Give more with '--models-memory', or "
                "leave it out"
            )

    def _start_timer(self, hosted: Hosted) -> None:
        if self._seconds and not hosted.entry.keep:
            loop = asyncio.get_running_loop()
            self._timers[hosted.entry.name] = loop.call_later(
                self._seconds,
                self._unload_unused,
                hosted,
            )

    def _stop_timer(self, hosted: Hosted) -> None:
        timer = self._timers.pop(hosted.entry.name, None)
        if timer is not None:
            timer.cancel()

    def _unload_unused(self, hosted: Hosted) -> None:
        if hosted.idle:
            end = asyncio.create_task(self._unload(hosted))
            self._ends.add(end)
            end.add_done_callback(self._ends.discard)


def _none_loaded() -> ApiError:
    return ApiError(
        503,
        "cannot describe a model: none is loaded. Send a request that names one",
        code="model_not_loaded",
    )


def machine_memory() -> int:
    """Return the bytes of memory of this machine, or of its container."""
    total = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    limit = Path("/sys/fs/cgroup/memory.max")
    if limit.exists() and (own := limit.read_text().strip()).isdecimal():
        total = min(total, int(own))
    return total
