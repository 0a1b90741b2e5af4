"""Provides the deployment that clients reach: a router of Ray's replicas."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from fastapi import FastAPI
from ray.serve.handle import DeploymentHandle

from foreword.server.cluster.engine import Handle
from foreword.server.errors import PrivatePaths
from foreword.server.limits import Limits
from foreword.server.log import Log
from foreword.server.replicas.app import build_router
from foreword.server.replicas.models import Models, Ping, no_ping
from foreword.server.replicas.pool import Pool, Replica
from foreword.server.replicas.router import Router
from foreword.server.run import log_to_stderr
from foreword.server.settings import Settings
from foreword.settings_file import BUNDLED


class Ingress:
    """A router as a deployment of Ray Serve."""

    def __init__(
        self, settings: Settings, model: str | None, engine: DeploymentHandle
    ) -> None:
        self._settings = settings
        self._model = model or BUNDLED
        self._handle = Handle(engine)

    def __serve_build_asgi_app__(self) -> FastAPI:
        """Return the application; Ray calls this in the replica."""
        log_to_stderr()
        settings = self._settings
        router = Router(
            settings,
            RayModel(self._handle),
            Log(as_json=settings.log_json),
            Limits(settings.queue, settings.concurrent, settings.rate),
            PrivatePaths(self._model),
        )

        async def end() -> None:
            """Leave the replicas to Ray."""

        return build_router(router, None, end)

    async def about(self) -> dict[str, Any]:
        """Return what a replica says of itself, once there is one."""
        return await self._handle.about()


class RayModel(Models):
    """The only model: Ray knows its replicas, and they resolve its name."""

    def __init__(self, handle: Handle) -> None:
        self._handle = handle
        self._pool = Pool([Replica("ray", handle, ready=True, several=True)])

    @asynccontextmanager
    async def lease(
        self, name: str | None, *, load: bool = True, ping: Ping = no_ping
    ) -> AsyncIterator[Pool]:
        """Yield all replicas as one."""
        yield self._pool

    @property
    def pools(self) -> dict[str, Pool]:
        """None: Ray has metrics of its replicas."""
        return {}

    @property
    def ready(self) -> bool:
        """Whether requests can be answered: Ray has them wait for a replica."""
        return True

    @property
    def state(self) -> dict[str, dict[str, str]]:
        """Nothing: `serve status` has it."""
        return {}

    @property
    def restarts(self) -> int:
        """None: Ray counts them."""
        return 0

    async def metrics(self) -> dict[str, str]:
        """Return the metrics of each replica."""
        return await self._handle.metrics()
