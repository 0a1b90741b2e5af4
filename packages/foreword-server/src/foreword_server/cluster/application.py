"""The application that Ray Serve deploys: ingresses, and the replicas behind them."""

import sys
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from functools import partial
from typing import Any, NoReturn

from fastapi import FastAPI
from ray import serve
from ray.serve import Application
from ray.serve.config import BackpressureConfig, RequestRouterConfig
from ray.serve.handle import DeploymentHandle

from foreword import __version__
from foreword.settings_file import BUNDLED
from foreword_server.cluster.engine import Engine, Handle, NamedEngine
from foreword_server.cluster.placing import HEAD, Scale, ingresses
from foreword_server.cluster.routing import PrefixRouter
from foreword_server.errors import PrivatePaths
from foreword_server.limits import Limits
from foreword_server.log import Log
from foreword_server.replicas.app import build_router
from foreword_server.replicas.catalog import Catalog, Entry
from foreword_server.replicas.models import ManyModels, Models, Ping, no_ping
from foreword_server.replicas.pool import Pool, Replica
from foreword_server.replicas.process import Start
from foreword_server.replicas.router import Router
from foreword_server.replicas.serve import behind
from foreword_server.run import log_to_stderr

ROUTING: dict[str, Any] = {"request_router_class": PrefixRouter}
LAST_SECONDS = 10.0
"""Seconds of a replica to end after its last answer."""


def application(
    start: Start,
    scale: Scale,
    nodes: Sequence[Mapping[str, float]],
    environment: Mapping[str, str],
) -> Application:
    """Return the application. `nodes`: resources of each. `environment`: variables that
    its processes get.
    """
    settings = start.settings
    cpus, gpus = scale.share(nodes)
    count = ingresses(settings, nodes)
    queue = -(-settings.queue * scale.most // count)
    process = {"runtime_env": {"env_vars": dict(environment)}} if environment else {}
    kind = Engine
    if start.catalog is not None:
        kind = NamedEngine
        sharers = scale.together(nodes)
        start = replace(start, catalog=replace(start.catalog, sharers=sharers))
    engine = serve.deployment(
        name="Engine",
        **scale.counts(start.options["slots"]),
        max_queued_requests=queue,
        backpressure_config=BackpressureConfig(status_code=429, retry_after_s=1),
        request_router_config=RequestRouterConfig(**ROUTING),
        ray_actor_options={"num_cpus": cpus, "num_gpus": gpus, **process},
        graceful_shutdown_timeout_s=settings.drain + LAST_SECONDS,
    )(kind)
    node = {"resources": {HEAD: 0.001}} if count == 1 else {}
    ingress = serve.deployment(
        name="Ingress",
        num_replicas=count,
        max_ongoing_requests=10**6,
        ray_actor_options={"num_cpus": 0, **node, **process},
        graceful_shutdown_timeout_s=settings.drain + LAST_SECONDS,
    )(serve.ingress()(Ingress))
    behind_ingress = replace(start, settings=behind(settings))
    replicas = engine.bind(behind_ingress, __version__)
    at_ingress = replace(start, settings=replace(settings, queue=queue))
    return ingress.bind(at_ingress, replicas)


class Ingress:
    """A router as a deployment of Ray Serve."""

    def __init__(self, start: Start, engine: DeploymentHandle) -> None:
        self._start = start
        self._handle = Handle(engine)

    def __serve_build_asgi_app__(self) -> FastAPI:
        """Return the application; Ray calls this in the replica."""
        log_to_stderr()
        start, settings = self._start, self._start.settings
        log = Log(as_json=settings.log_json)
        models, sources = RayModel(self._handle), [start.model or BUNDLED]
        if start.catalog is not None:
            models = RayModels(self._handle, start.catalog, log, settings.any_model)
            sources = [entry.model for entry in start.catalog.entries]
        router = Router(
            settings,
            log,
            Limits(settings.queue, settings.concurrent, settings.rate),
            PrivatePaths(*sources),
            models,
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
        self._pool = Pool([Replica("ray", handle.ask, ready=True, several=True)])

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


class RayModels(RayModel, ManyModels):
    """Models by name: a replica loads the model that a request names."""

    has_status = False

    def __init__(self, handle: Handle, catalog: Catalog, log: Log, any_model: bool):
        everything: Any = dict(memory=sys.maxsize, seconds=0, gpus=False)
        ManyModels.__init__(
            self, catalog.entries, _none, log, any_model=any_model, **everything
        )
        self._handle = handle

    @asynccontextmanager
    async def lease(
        self, name: str | None, *, load: bool = True, ping: Ping = no_ping
    ) -> AsyncIterator[Pool]:
        """Yield all replicas as one: Ray chooses one that has the model."""
        model = self.named(name).entry.name
        ask = partial(self._handle.ask, model=model, load=load)
        yield Pool([Replica(model, ask, ready=True, several=True)])


def _none(entry: Entry) -> NoReturn:
    """Start no process: replicas do."""
    raise NotImplementedError
