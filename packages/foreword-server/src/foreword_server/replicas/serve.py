"""Process of a router: it starts replicas, serves, and ends them."""

import asyncio
import gc
import logging
import socket
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import AbstractContextManager, asynccontextmanager
from dataclasses import dataclass, replace

from foreword.settings_file import BUNDLED
from foreword_server.batches.jobs import Batches
from foreword_server.batches.store import Store
from foreword_server.connections import most_connections
from foreword_server.errors import PrivatePaths
from foreword_server.limits import Limits
from foreword_server.log import Log
from foreword_server.replicas.app import build_answers, build_router
from foreword_server.replicas.catalog import Catalog, Entry
from foreword_server.replicas.hosted import at_once, machine_memory
from foreword_server.replicas.models import ManyModels, Models, Ping, no_ping
from foreword_server.replicas.places import Place, has_gpus, places
from foreword_server.replicas.pool import Pool
from foreword_server.replicas.process import Start
from foreword_server.replicas.router import Router
from foreword_server.replicas.supervise import Supervisor
from foreword_server.run import HttpServer, log_to_stderr
from foreword_server.settings import Settings

DESCRIPTORS = 2
"""Descriptors of each request: to its client and to a replica."""
SHARE = 0.8
"""Share of the memory that models loaded on demand may take by default."""
WIDTH = 16
"""Requests of a batch at a time, where its model is loaded on demand."""


@dataclass(frozen=True, slots=True)
class Begun:
    """What a router serves."""

    models: Models
    stop: Callable[[], Awaitable[None]]
    about: str
    """A phrase for the person who starts it."""
    sources: Sequence[str] = ()
    """Models, whose folders clients should not learn."""
    width: int = WIDTH
    """Requests of a batch at a time."""


Begin = Callable[[Log], Awaitable[Begun]]
"""Starts what a router serves."""


@dataclass(frozen=True, slots=True)
class OneModel(Models):
    """The only model: replicas resolve its name."""

    supervisor: Supervisor

    @asynccontextmanager
    async def lease(
        self, name: str | None, *, load: bool = True, ping: Ping = no_ping
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
        replicas = self.supervisor.pool.replicas
        return {"replicas": {one.name: one.state for one in replicas}}

    @property
    def restarts(self) -> int:
        """Replicas that were started again."""
        return self.supervisor.restarts


def one_model(start: Start, layout: Sequence[Place], seconds: float) -> Begin:
    """Return what starts replicas of one model; `seconds`: most until one is ready."""

    async def begin(log: Log) -> Begun:
        replica_start = replace(start, settings=behind(start.settings))
        supervisor = Supervisor(replica_start, layout, seconds, log)
        about = await supervisor.start()
        return Begun(
            OneModel(supervisor),
            supervisor.stop,
            f"{len(layout)} replicas of {about['summary']}, as {about['name']}",
            [start.model or BUNDLED],
            max(1, about["slots"] * len(layout) // 2),
        )

    return begin


def many_models(catalog: Catalog, settings: Settings) -> Begin:
    """Return what starts the models of a catalog that stay."""
    entries, memory = catalog.entries, catalog.memory
    if memory is None:
        memory = int(SHARE * machine_memory() / catalog.sharers)

    async def begin(log: Log) -> Begun:
        sharers = catalog.sharers * at_once(entries, memory)

        def supervised(entry: Entry) -> Supervisor:
            replica_settings = replace(behind(settings), name=entry.name)
            layout = (
                [Place()]
                if entry.replicas == 1
                else places(entry.replicas, gpus=entry.options.get("device") != "cpu")
            )
            start = Start(entry.source, entry.options, replica_settings)
            layout = [replace(one, sharers=sharers) for one in layout]
            return Supervisor(start, layout, catalog.seconds, log)

        models = ManyModels(
            entries,
            supervised,
            log,
            memory=memory,
            seconds=catalog.unused,
            gpus=has_gpus(),
            any_model=settings.any_model,
        )
        try:
            await models.start()
        except BaseException:
            await models.stop()
            raise
        names = ", ".join(name for one in entries for name in one.names)
        sources = [entry.model for entry in entries]
        return Begun(models, models.stop, f"models by name ({names})", sources)

    return begin


def serve(
    begin: Begin,
    settings: Settings,
    listener: socket.socket,
    *,
    store: Store | None,
    loading: AbstractContextManager[object],
    started: Callable[[str], None],
    quiet: bool = False,
) -> None:
    """Serve on a bound socket until SIGINT or SIGTERM.

    `started` is called with a phrase about what is served when requests are accepted.
    Raises InvalidRequest for a model that cannot be served, and NotReady.
    """
    log_to_stderr(logging.WARNING if quiet else logging.INFO)

    async def main() -> None:
        log = Log(as_json=settings.log_json)
        with loading:
            begun = await begin(log)
        router = Router(
            settings,
            log,
            Limits(settings.queue, settings.concurrent, settings.rate),
            PrivatePaths(*begun.sources),
            begun.models,
        )
        batches = None
        if store is not None:
            app = build_answers(router)
            batches = Batches(store, app, begun.width, settings.concurrent)
        try:
            server = HttpServer(
                router,
                build_router(router, batches, begun.stop),
                most_connections() // DESCRIPTORS,
                lambda: started(begun.about),
            )
            gc.collect()
            gc.freeze()
            await server.serve(sockets=[listener])
        finally:
            await begun.stop()
            if store is not None:
                store.close()

    asyncio.run(main())


def behind(settings: Settings) -> Settings:
    """Return the settings of a replica: its router keeps the limits."""
    return replace(
        settings,
        host="127.0.0.1",
        keys=frozenset(),
        concurrent=None,
        rate=None,
        files=None,
        origins=(),
        resume=True,
        leave=0.0,
        routed=True,
    )
