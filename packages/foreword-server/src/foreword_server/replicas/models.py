"""Models behind a router: one that is always loaded, or several that are loaded when a
request names them and unloaded when others need their memory.
"""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager, suppress
from functools import partial
from time import monotonic
from typing import Protocol, runtime_checkable

from foreword.errors import ForewordError, InvalidRequest
from foreword_server.errors import ApiError
from foreword_server.log import Log
from foreword_server.replicas.catalog import Entry
from foreword_server.replicas.hosted import GIB, Hosted
from foreword_server.replicas.pool import WAIT_SECONDS, Pool, metrics_of_pools
from foreword_server.replicas.supervise import Supervisor
from foreword_server.wire import PING_SECONDS

FAILED_SECONDS = 300.0
"""Seconds until a model that failed to load is retried: a try may unload another."""
TURN_SECONDS = 20.0
"""Seconds that a model waits for memory before new requests of others wait for it."""
DEFAULT = "default"
"""Name of the first model."""
Ping = Callable[[], Awaitable[None]]
"""Shows a client that waits that the server lives."""


async def no_ping() -> None:
    """Show nothing: the client waits for a whole answer."""


@runtime_checkable
class Models(Protocol):
    """Whatever finds the replicas of a request's model."""

    def lease(
        self, name: str | None, *, load: bool = True, ping: Ping = no_ping
    ) -> AbstractAsyncContextManager[Pool]:
        """Yield the replicas of a model, which stays loaded meanwhile. `load`: whether
        it may be loaded for this; `ping` is called every PING_SECONDS meanwhile.

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

    def drain(self) -> None:
        """Start no replica again: the server stops."""
        for pool in self.pools.values():
            pool.draining = True

    async def metrics(self) -> dict[str, str]:
        """Return the metrics of each replica, in Prometheus' text, by its name."""
        return await metrics_of_pools(self.pools)


class ManyModels(Models):
    """Models that are loaded on demand."""

    has_status = True
    """Whether it knows which are loaded."""

    def __init__(
        self,
        entries: Sequence[Entry],
        start: Callable[[Entry], Supervisor],
        log: Log,
        *,
        memory: int,
        seconds: float,
        gpus: bool,
        any_model: bool = False,
    ) -> None:
        """`start` makes the processes of a model. `memory`: bytes for all that are
        loaded. `seconds`: one that was not used so long is unloaded; 0: none is.
        `gpus`: whether there are any; of the models that may use them one is loaded
        at a time. `any_model`: whether other names mean the first model.

        Raises InvalidRequest for a model that does not fit in the memory alone, or that
        would keep others from a GPU.
        """
        self.hosted = [Hosted(entry) for entry in entries]
        self._by_name = {name: one for one in self.hosted for name in one.entry.names}
        self._start = start
        self._log = log
        self._memory = memory
        self._seconds = seconds
        self._gpus = gpus
        self._any_model = any_model
        self._freed = asyncio.Event()
        """Set when a model has become idle or was unloaded."""
        self._timers: dict[str, asyncio.TimerHandle] = {}
        self._ends: set[asyncio.Task[None]] = set()
        self._restarts = 0
        self._closing = False
        for hosted in self.hosted:
            self._check_size(hosted)
            self._check_keep(hosted)

    @asynccontextmanager
    async def lease(
        self, name: str | None, *, load: bool = True, ping: Ping = no_ping
    ) -> AsyncIterator[Pool]:
        """Yield the replicas of a model, after loading it if need be.

        A load belongs to the model: it goes on when the client leaves.
        """
        hosted = self.named(name)
        while hosted.yields_to is not None:
            await _ended(hosted.yields_to.loading, ping)
        self._stop_timer(hosted)
        hosted.users += 1
        try:
            while hosted.supervisor is None:
                if not load:
                    raise _none_loaded()
                loading = self._begin_load(hosted)
                await _ended(loading, ping)
                loading.result()
            yield hosted.supervisor.pool
        finally:
            hosted.users -= 1
            hosted.used = monotonic()
            self._release(hosted)

    async def start(self) -> None:
        """Load the models that stay. Raises InvalidRequest if one cannot be."""
        for hosted in self.hosted:
            if hosted.entry.keep:
                await self._begin_load(hosted)

    async def stop(self) -> None:
        """Unload all."""
        self._closing = True
        for timer in self._timers.values():
            timer.cancel()
        loads = [one.loading for one in self.hosted if one.loading is not None]
        for load in loads:
            load.cancel()
        await asyncio.gather(*loads, return_exceptions=True)
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
        """Return the model of a name; the first one for other names, where any may be
        given. None: one that is loaded.

        Raises ApiError 404 for a name that is not known.
        """
        if name is None:
            loaded = [one for one in self.hosted if one.status == "loaded"]
            return (loaded or self.hosted)[0]
        plain = name.rpartition(":")[0] or name
        model = self._by_name.get(name) or self._by_name.get(plain)
        if model is not None:
            return model
        if name == DEFAULT or self._any_model:
            return self.hosted[0]
        known = ", ".join(self._by_name)
        raise ApiError(
            404,
            f"cannot use model {name!r}: this server has {known}. Name one of "
            "them, or NAME:METHOD",
            param="model",
            code="model_not_found",
        )

    def _begin_load(self, hosted: Hosted) -> asyncio.Task[None]:
        """Return the task that loads a model, for all requests that wait for it."""
        if hosted.loading is None:
            hosted.loading = asyncio.create_task(self._load(hosted))
            hosted.loading.add_done_callback(partial(self._end_load, hosted))
        return hosted.loading

    def _end_load(self, hosted: Hosted, load: asyncio.Task[None]) -> None:
        hosted.loading = None
        if not load.cancelled():
            load.exception()  # the clients that waited for it may have left
        for other in self.hosted:
            if other.yields_to is hosted:
                other.yields_to = None
        self._release(hosted)

    def _release(self, hosted: Hosted) -> None:
        """Note that fewer requests use a model."""
        if not hosted.users:
            self._freed.set()
            self._start_timer(hosted)

    async def _load(self, hosted: Hosted) -> None:
        async with hosted.lock:
            if hosted.failure and monotonic() < hosted.failure[0] + FAILED_SECONDS:
                raise hosted.failure[1]
            await self._make_room(hosted)
            await self._start_processes(hosted)

    async def _start_processes(self, hosted: Hosted) -> None:
        name = hosted.entry.name
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
        hosted.measured = await supervisor.memory()
        self._log.event(
            "model loaded",
            model=name,
            seconds=round(monotonic() - before, 1),
            gib=round(hosted.measured / GIB, 2),
        )

    async def _make_room(self, hosted: Hosted) -> None:
        """Unload models, the one unused longest first, until another one fits."""
        turn = monotonic() + TURN_SECONDS
        try:
            async with asyncio.timeout(WAIT_SECONDS):
                while True:
                    self._freed.clear()
                    if (lacking := await self._lacking(hosted)) <= 0:
                        return
                    rest = turn - monotonic()
                    if rest <= 0:
                        self._claim(hosted, lacking)
                    if idle := [one for one in self.hosted if one.idle]:
                        await self._unload(min(idle, key=lambda model: model.used))
                        continue
                    with suppress(TimeoutError):
                        async with asyncio.timeout(rest if rest > 0 else None):
                            await self._freed.wait()
        except TimeoutError:
            raise ApiError(
                503,
                f"cannot load model {hosted.entry.name!r}: the others that are loaded "
                "answer requests. Try again later",
                code="overloaded",
                retry_after=10,
            ) from None

    def _claim(self, hosted: Hosted, lacking: int) -> None:
        """Have new requests of models that hold these bytes wait until another one is
        loaded: under steady use they would never be idle.
        """
        others = [
            one for one in self.hosted if one.status == "loaded" and not one.entry.keep
        ]
        for other in sorted(others, key=lambda other: other.users):
            if lacking > 0:
                lacking -= other.bytes
                other.yields_to = other.yields_to or hosted

    async def _lacking(self, hosted: Hosted) -> int:
        """Return the bytes that are lacking to load a model beside all that are
        loaded or being loaded; keys and values of long prompts have made some larger.
        """
        for model in self.hosted:
            if model.supervisor is not None:
                model.measured = await model.supervisor.memory()
        loaded = [one for one in self.hosted if one.status != "unloaded"]
        lacking = sum(one.bytes for one in {*loaded, hosted}) - self._memory
        if not (self._gpus and hosted.may_use_gpu):
            return lacking
        # an engine fills the video memory that it finds free with keys and values
        others = [one for one in loaded if one is not hosted and one.may_use_gpu]
        return max(lacking, sum(one.bytes for one in others))

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

    def _check_keep(self, hosted: Hosted) -> None:
        if not (self._gpus and hosted.entry.keep and hosted.may_use_gpu):
            return
        if sum(one.may_use_gpu for one in self.hosted) > 1:
            raise InvalidRequest(
                f"cannot keep model {hosted.entry.name!r} loaded: of the models on a "
                "GPU one is loaded at a time. Leave 'keep' out, or give the others "
                "device = 'cpu'"
            )

    def _start_timer(self, hosted: Hosted) -> None:
        if self._seconds and not hosted.entry.keep:
            loop = asyncio.get_running_loop()
            self._timers[hosted.entry.name] = loop.call_later(
                self._seconds, self._unload_unused, hosted
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


async def _ended(load: asyncio.Task[None] | None, ping: Ping) -> None:
    """Wait until a load has ended, which goes on if this is cancelled."""
    while load is not None and not load.done():
        done, _ = await asyncio.wait((load,), timeout=PING_SECONDS)
        if not done:
            await ping()
    await asyncio.sleep(0)  # what follows from its end is done then
