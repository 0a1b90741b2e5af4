"""Deploys a server on a Ray cluster; a new model replaces the old one under load."""

import logging
import os
import re
import shutil
from pathlib import Path
from time import monotonic, sleep
from typing import Any, cast

import ray
from ray import serve
from ray.exceptions import RayError

from foreword.errors import InvalidRequest, words
from foreword_server.cluster.address import (
    AUTO,
    FAULTS,
    LOCAL,
    check_address,
    check_reachable,
    refuse,
)
from foreword_server.cluster.application import application
from foreword_server.cluster.placing import Scale, nodes, proxies
from foreword_server.commands.keys import KEYS
from foreword_server.replicas.process import Start
from foreword_server.settings import Settings

APP = "foreword"
"""Name of the application on the cluster: the next deployment replaces it."""
CONTROLLER = "SERVE_CONTROLLER_ACTOR"
PREFIXES = ("FOREWORD_", "OTEL_")
QUIET = {"log_level": "WARNING"}
DONE = ("RUNNING", "DEPLOY_FAILED", "UNHEALTHY")
"""States of an application that no time changes."""
POLL_SECONDS = 0.2
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
    resources = nodes()
    scale.check(resources)
    _start_proxy(start.settings)
    is_new = APP not in serve.status().applications
    target = serve.RunTarget(
        target=application(start, scale, resources, environment()),
        name=APP,
        route_prefix="/",
        logging_config=QUIET,
    )
    last = monotonic() + seconds
    (handle,) = serve.run_many([target], wait_for_applications_running=False)
    while (state := _state()) not in DONE:
        if monotonic() > last:
            if is_new:
                serve.delete(APP)
            raise InvalidRequest(_lacking(scale.share(resources), seconds))
        sleep(POLL_SECONDS)
    if state != DONE[0]:
        raise InvalidRequest(_reason())
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


def environment() -> dict[str, str]:
    """Return the variables of this process that replicas get: a node of a running
    cluster has others. Ray's dashboard shows them, so API keys are left out.
    """
    return {
        name: value
        for name, value in os.environ.items()
        if name.startswith(PREFIXES) and name != KEYS
    }


def _start_proxy(settings: Settings) -> None:
    """Start what takes connections, if no Serve runs.

    Raises InvalidRequest if it does not get ready, or has another address.
    """
    if (options := http_options()) is not None:
        check_address(settings, options.host or "", options.port)
        return
    address = {"host": settings.host.strip("[]"), "port": settings.port}
    try:
        serve.start(
            proxy_location=proxies(settings), logging_config=QUIET, http_options=address
        )
    except (RuntimeError, RayError) as error:
        raise InvalidRequest(
            f"cannot serve at {settings.host}:{settings.port} of the cluster's head: "
            f"its proxy did not get ready. Name another '--port', or try again"
        ) from error


def http_options() -> Any:
    """Return the address of the Serve that runs on the cluster; None without one."""
    try:
        controller = ray.get_actor(CONTROLLER, namespace="serve")
    except ValueError:
        return None
    return ray.get(controller.get_http_config.remote())


def _state() -> str:
    """Return what Ray says of the application."""
    return serve.status().applications[APP].status


def _lacking(share: tuple[float, float], seconds: float) -> str:
    """Return why replicas do not run: there may be no room."""
    states: Any = serve.status().applications[APP].deployments["Engine"].replica_states
    free = ray.available_resources()
    return (
        f"cannot serve within {seconds:g} s: {states.get('RUNNING', 0)} of "
        f"{sum(states.values())} replicas run. Each takes {share[0]:g} CPUs and "
        f"{share[1]:g} GPUs, and {free.get('CPU', 0):g} CPUs and "
        f"{free.get('GPU', 0):g} GPUs of the cluster are free. Add nodes, give fewer "
        "with '--replica-cpus', or more time to load with '--replica-timeout'"
    )


def _reason() -> str:
    """Return why a replica could not start, in our words where it said so."""
    application = serve.status().applications[APP]
    messages = [application.message]
    messages += [one.message for one in application.deployments.values()]
    text = "\n".join(messages)
    reasons = REASON.findall(text)
    return reasons[-1] if reasons else f"cannot deploy: {text}. See the logs of Ray"
