"""Provides the process of a router: it starts replicas, serves, and ends them."""

from __future__ import annotations

import asyncio
import gc
import logging
import socket
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import replace

from foreword.server.batches.jobs import Batches
from foreword.server.batches.store import Store
from foreword.server.connections import most_connections
from foreword.server.limits import Limits
from foreword.server.log import Log
from foreword.server.replicas.app import build_answers, build_router
from foreword.server.replicas.places import Place
from foreword.server.replicas.process import Start
from foreword.server.replicas.router import Router
from foreword.server.replicas.supervise import Supervisor
from foreword.server.run import HttpServer, log_to_stderr
from foreword.server.settings import MEBIBYTE, Settings

SENT_BYTES = 16 * MEBIBYTE
"""Bytes, beyond a client's body, of what it has of an answer: 7 for each token."""
DESCRIPTORS = 2
"""Of each request: to its client and to a replica."""


def serve_replicas(
    start: Start,
    places: Sequence[Place],
    listener: socket.socket,
    *,
    seconds: float,
    store: Store | None,
    loading: AbstractContextManager[object],
    started: Callable[[str, str], None],
    quiet: bool = False,
) -> None:
    """Serve on a bound socket until SIGINT or SIGTERM.

    `seconds`: most until a replica is ready. `started` is called with the name and the
    method when requests are accepted. Raises InvalidRequest for a model that cannot be
    served, and NotReady.
    """
    log_to_stderr(logging.WARNING if quiet else logging.INFO)
    settings = start.settings
    own = replace(start, settings=behind(settings))

    async def main() -> None:
        log = Log(as_json=settings.log_json)
        supervisor = Supervisor(own, places, seconds, log)
        with loading:
            about = await supervisor.start()
        router = Router(
            settings,
            supervisor.pool,
            about["name"],
            log,
            Limits(settings.queue, settings.concurrent, settings.rate),
            restarts=lambda: supervisor.restarts,
        )
        slots = about["slots"] * len(places)
        batches = (
            Batches(store, build_answers(router), max(1, slots // 2)) if store else None
        )
        try:
            app = build_router(router, batches, supervisor.stop)
            server = HttpServer(
                router,
                app,
                most_connections() // DESCRIPTORS,
                lambda: started(about["name"], about["method"]),
            )
            gc.collect()
            gc.freeze()
            await server.serve(sockets=[listener])
        finally:
            await supervisor.stop()
            if store is not None:
                store.close()

    asyncio.run(main())


def behind(settings: Settings) -> Settings:
    """Return the settings of a replica: its router keeps the limits."""
    return replace(
        settings,
        host="127.0.0.1",
        keys=frozenset(),
        body=settings.body + SENT_BYTES,
        concurrent=None,
        rate=None,
        files=None,
        private_metrics=False,
        routed=True,
    )
