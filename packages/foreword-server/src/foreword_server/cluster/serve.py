"""Deploys a server on a Ray cluster; a new model replaces the old one under load.

A request goes to the replica that has read its prompt's beginning, unless that is far
busier than another.
"""

import logging
import os
import re
import shutil
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, cast

import ray
from fastapi import FastAPI
from ray import serve
from ray.exceptions import RayError
from ray.serve.config import AutoscalingConfig, BackpressureConfig, RequestRouterConfig
from ray.serve.handle import DeploymentHandle
from ray.serve.request_router import (
    FIFOMixin,
    PendingRequest,
    ReplicaID,
    RequestRouter,
    RunningReplica,
)

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
from foreword_server.errors import PrivatePaths
from foreword_server.limits import Limits
from foreword_server.log import Log
from foreword_server.replicas.app import build_router
from foreword_server.replicas.models import Models, Ping, no_ping
from foreword_server.replicas.pool import Asked, Pool, Replica, cost
from foreword_server.replicas.prefixes import Prefixes
from foreword_server.replicas.process import Start
from foreword_server.replicas.router import Router
from foreword_server.replicas.serve import behind
from foreword_server.run import log_to_stderr
from foreword_server.settings import Settings


class PrefixRouter(FIFOMixin, RequestRouter):
    """Router of requests of `Engine.ask`, first come, first served."""

    def initialize_state(self, **_: Any) -> None:
        """Begin with replicas that have read nothing."""
        self._prefixes: dict[ReplicaID, Prefixes] = {}
        self._running: dict[ReplicaID, int] = {}

    async def choose_replicas(
        self,
        candidate_replicas: list[RunningReplica],
        pending_request: PendingRequest | None = None,
    ) -> list[list[RunningReplica]]:
        """Return the replicas, the best one first; a full one is passed over."""
        if not candidate_replicas:
            return []
        keys = blocks_of(pending_request)

        def rank(peer: RunningReplica) -> float:
            known = self._prefixes.get(peer.replica_id)
            return cost(self._count(peer), 0 if known is None else known.matches(keys))

        return [[one] for one in sorted(candidate_replicas, key=rank)]

    def update_replicas(self, replicas: list[RunningReplica]) -> None:
        """Take the replicas that there are, and forget the others."""
        super().update_replicas(replicas)
        left = {one.replica_id for one in replicas}
        for table in (self._prefixes, self._running):
            for gone in table.keys() - left:
                del table[gone]

    def on_request_routed(
        self, pending_request: PendingRequest, replica_id: ReplicaID, result: Any
    ) -> None:
        """Count a request, and its prompt as read."""
        known = self._prefixes.setdefault(replica_id, Prefixes())
        known.add(blocks_of(pending_request))
        self._running[replica_id] = self._running.get(replica_id, 0) + 1

    def on_request_completed(
        self, replica_id: ReplicaID, internal_request_id: str
    ) -> None:
        """Count a request no more."""
        self._running[replica_id] = max(0, self._running.get(replica_id, 1) - 1)

    def _count(self, replica: RunningReplica) -> int:
        """Return the requests of a replica."""
        return self._running.get(replica.replica_id, 0)


def blocks_of(pending: PendingRequest | None) -> Sequence[bytes]:
    """Return the beginnings of a request's prompt; none of other calls."""
    call = pending.args[0] if pending and pending.args else None
    return call.blocks if isinstance(call, Asked) else ()


APP = "foreword"
"""Name of the application on the cluster: the next deployment replaces it."""
CONTROLLER = "SERVE_CONTROLLER_ACTOR"
HEAD = {"node:__internal_head__": 0.001}
"""Resource of the node that has the cluster's head: the ingress stays there."""
ROUTING: dict[str, Any] = {"request_router_class": PrefixRouter}
LAST_SECONDS = 10.0
"""Seconds of a replica to end after its last answer."""
REASON = re.compile(r"foreword\.errors\.\w+: (.+)")
"""An error of ours in the traceback of a replica."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Scale:
    """How many replicas there are, and what each of them takes."""

    least: int = 1
    most: int = 1
    cpus: float | None = None
    """None: all of the smallest node's; 1 where there are GPUs."""
    gpus: float | None = None
    """None: one, where the cluster has some."""


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
    cpus, gpus = _share(scale)
    controller = _controller()
    if controller is None:
        _start_proxy(settings)
    else:
        options: Any = ray.get(controller.get_http_config.remote())
        check_address(settings, options.host or "", options.port)
    engine = serve.deployment(
        name="Engine",
        **_counts(scale),
        max_ongoing_requests=2 * start.options["slots"],
        max_queued_requests=settings.queue,
        backpressure_config=BackpressureConfig(status_code=429, retry_after_s=1),
        request_router_config=RequestRouterConfig(**ROUTING),
        ray_actor_options={"num_cpus": cpus, "num_gpus": gpus},
        graceful_shutdown_timeout_s=settings.drain + LAST_SECONDS,
    )(Engine)
    ingress = serve.deployment(
        name="Ingress",
        max_ongoing_requests=10**6,
        ray_actor_options={"num_cpus": 0, "resources": HEAD},
        graceful_shutdown_timeout_s=settings.drain + LAST_SECONDS,
    )(serve.ingress()(Ingress))
    replica_start = replace(start, settings=behind(settings))
    application = ingress.bind(settings, start.model, engine.bind(replica_start))
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
    """Start what takes connections, on the node of the cluster's head.

    Raises InvalidRequest if it does not get ready.
    """
    address = {"host": settings.host.strip("[]"), "port": settings.port}
    try:
        serve.start(
            proxy_location="HeadOnly",
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


def _share(scale: Scale) -> tuple[float, float]:
    """Return a replica's CPUs and GPUs. InvalidRequest if no node has them."""
    nodes = [one["Resources"] for one in ray.nodes() if one["Alive"]]
    has_gpus = any(one.get("GPU") for one in nodes)
    gpus = scale.gpus if scale.gpus is not None else float(has_gpus)
    cpus = scale.cpus
    if cpus is None:
        cpus = 1.0 if has_gpus else min(one.get("CPU", 1.0) for one in nodes)
    for name, amount in (("CPU", cpus), ("GPU", gpus)):
        most = max(one.get(name, 0.0) for one in nodes)
        if amount > most:
            raise InvalidRequest(
                f"cannot place a replica: it takes {amount:g} {name}s, and the "
                f"largest node has {most:g}. Give fewer with '--replica-"
                f"{name.lower()}s'"
            )
    return cpus, gpus


def _counts(scale: Scale) -> dict[str, Any]:
    """Return how many replicas Ray keeps."""
    if scale.least == scale.most:
        return {"num_replicas": scale.least}
    return {
        "autoscaling_config": AutoscalingConfig(
            min_replicas=scale.least, max_replicas=scale.most
        )
    }


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
