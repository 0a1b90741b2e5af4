"""Deploys a server on a Ray cluster; a new model replaces the old one under load."""

import logging
import os
import re
import shutil
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import ray
from fastapi import FastAPI
from ray import serve
from ray.exceptions import RayError
from ray.serve.config import BackpressureConfig, RequestRouterConfig
from ray.serve.handle import DeploymentHandle

from foreword import __version__
from foreword.errors import InvalidRequest, words
from foreword.settings_file import BUNDLED
from foreword_server.cluster.address import (
    AUTO,
    FAULTS,
    LOCAL,
    check_address,
    check_reachable,
    refuse,
)
from foreword_server.cluster.engine import Engine, Handle
from foreword_server.cluster.placing import HEAD, Scale, ingresses, nodes, proxies
from foreword_server.cluster.routing import PrefixRouter
from foreword_server.errors import PrivatePaths
from foreword_server.limits import Limits
from foreword_server.log import Log
from foreword_server.replicas.app import build_router
from foreword_server.replicas.models import Models, Ping, no_ping
from foreword_server.replicas.pool import Pool, Replica
from foreword_server.replicas.process import Start
from foreword_server.replicas.router import Router
from foreword_server.replicas.serve import behind
from foreword_server.run import log_to_stderr
from foreword_server.settings import Settings

APP = "foreword"
"""Name of the application on the cluster: the next deployment replaces it."""
CONTROLLER = "SERVE_CONTROLLER_ACTOR"
ROUTING: dict[str, Any] = {"request_router_class": PrefixRouter}
LAST_SECONDS = 10.0
"""Seconds of a replica to end after its last answer."""
REASON = re.compile(r"foreword\.errors\.\w+: (.+)")
"""An error of ours in the traceback of a replica."""


def connect(address: str) -> Path:
    """Join a cluster, or start one on this machine (`LOCAL`). Return the folder of its
    logs and sockets here.

    Raises InvalidRequest if there is none at the address.
    """
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    if address not in (LOCAL, AUTO):
        check_reachable(address)
    try:
        context = ray.init(
            address=address,
            namespace=APP,
            include_dashboard=False if address == LOCAL else None,
            log_to_driver=True,
            logging_level=logging.WARNING,
        )
    except FAULTS as error:
        refuse(address, words(error))
    return Path(cast("Any", context).address_info["session_dir"])


def deploy(start: Start, scale: Scale, *, seconds: float) -> dict[str, Any]:
    """Serve on the cluster, in place of what is served there. Return what a replica
    says of itself.

    Replicas of before answer their requests to the end. `seconds`: most until one is
    ready. Raises InvalidRequest for a model that cannot be served.
    """
    settings = start.settings
    resources = nodes()
    cpus, gpus = scale.share(resources)
    count = ingresses(settings, resources)
    queue = -(-settings.queue * scale.most // count)
    controller = _controller()
    if controller is None:
        _start_proxy(settings)
    else:
        options: Any = ray.get(controller.get_http_config.remote())
        check_address(settings, options.host or "", options.port)
    engine = serve.deployment(
        name="Engine",
        **scale.counts(start.options["slots"]),
        max_queued_requests=queue,
        backpressure_config=BackpressureConfig(status_code=429, retry_after_s=1),
        request_router_config=RequestRouterConfig(**ROUTING),
        ray_actor_options={"num_cpus": cpus, "num_gpus": gpus},
        graceful_shutdown_timeout_s=settings.drain + LAST_SECONDS,
    )(Engine)
    node = {"resources": {HEAD: 0.001}} if count == 1 else {}
    ingress = serve.deployment(
        name="Ingress",
        num_replicas=count,
        max_ongoing_requests=10**6,
        ray_actor_options={"num_cpus": 0, **node},
        graceful_shutdown_timeout_s=settings.drain + LAST_SECONDS,
    )(serve.ingress()(Ingress))
    replica_start = replace(start, settings=behind(settings))
    replicas = engine.bind(replica_start, __version__)
    application = ingress.bind(replace(settings, queue=queue), start.model, replicas)
    try:
        handle = serve.run(
            application,
            name=APP,
            route_prefix="/",
            logging_config={"log_level": "WARNING"},
        )
    except RuntimeError as error:
        raise InvalidRequest(_reason(error)) from error
    return handle.about.remote().result(timeout_s=seconds)


def end(*, cluster: bool, session: Path | None = None) -> None:
    """End the server; `cluster`: and the cluster that was started for it, whose folder
    is removed if it is given: Ray keeps each.
    """
    if cluster:
        serve.shutdown()
        ray.shutdown()
        if session is not None:
            shutil.rmtree(session, ignore_errors=True)
    else:
        serve.delete(APP)


def _start_proxy(settings: Settings) -> None:
    """Start what takes connections.

    Raises InvalidRequest if it does not get ready.
    """
    address = {"host": settings.host.strip("[]"), "port": settings.port}
    try:
        serve.start(
            proxy_location=proxies(settings),
            logging_config={"log_level": "WARNING"},
            http_options=address,
        )
    except (RuntimeError, RayError) as error:
        raise InvalidRequest(
            f"cannot serve at {settings.host}:{settings.port} of the cluster's head: "
            f"its proxy did not get ready. Name another '--port', or try again"
        ) from error


def _controller() -> Any:
    """Return the controller of the Serve that runs on the cluster; None without one."""
    try:
        return ray.get_actor(CONTROLLER, namespace="serve")
    except ValueError:
        return None


def _reason(error: RuntimeError) -> str:
    """Return why a replica could not start, in our words where it said so."""
    application = serve.status().applications.get(APP)
    deployments = application.deployments.values() if application else ()
    messages = "\n".join(one.message for one in deployments)
    reasons = REASON.findall(messages)
    return reasons[-1] if reasons else f"cannot deploy: {error}. See the logs of Ray"


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
            Log(as_json=settings.log_json),
            Limits(settings.queue, settings.concurrent, settings.rate),
            PrivatePaths(self._model),
            RayModel(self._handle),
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
