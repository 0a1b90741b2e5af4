"""How many replicas a cluster of Ray keeps, and what each of them takes."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import ray

from foreword.errors import InvalidRequest
from foreword_server.settings import Settings, is_loopback

HEAD = "node:__internal_head__"
"""Resource of the node that has the cluster's head."""
ANYWHERE = ("0.0.0.0", "::")
"""Hosts that every node has."""
BUSY = 0.7
"""Share of a replica's slots that are in use when Ray starts another: the rest takes
the requests that come while it loads.
"""
WAITING = 2
"""Requests at a replica for each slot: none is empty while an answer is delivered."""
UP_SECONDS = 15.0
"""Seconds of load until replicas are added: less than most of them take to load."""
DOWN_SECONDS = 300.0
"""Seconds without it until some are removed: a replica's cache and model are lost."""
WINDOW_SECONDS = 15.0
"""Seconds over which load is averaged: Ray counts requests each ten seconds."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Scale:
    """How many replicas there are, and what each of them takes."""

    least: int = 1
    most: int = 1
    cpus: float | None = None
    """None: all of the smallest node's; 1 where there are GPUs."""
    gpus: float | None = None
    """None: one for each rank, where the cluster has some."""
    ranks: int = 1
    """Processes of a replica that share its weights, a GPU each. A placement group
    would show it the GPU of one bundle alone; an actor's resources are of one node too.
    """
    up_seconds: float = UP_SECONDS
    down_seconds: float = DOWN_SECONDS

    def counts(self, slots: int) -> dict[str, Any]:
        """Return how many replicas Ray keeps, and how many requests each one gets."""
        requests = {"max_ongoing_requests": WAITING * slots}
        if self.least == self.most:
            return {**requests, "num_replicas": self.least}
        scaling = {
            "min_replicas": self.least,
            "max_replicas": self.most,
            "target_ongoing_requests": BUSY * slots,
            "upscale_delay_s": self.up_seconds,
            "downscale_delay_s": self.down_seconds,
            "look_back_period_s": WINDOW_SECONDS,
        }
        return {**requests, "autoscaling_config": scaling}

    def share(self, nodes: Sequence[Mapping[str, float]]) -> tuple[float, float]:
        """Return a replica's CPUs and GPUs: every node with CPUs has room for it.

        Raises InvalidRequest where ranks would lack a GPU.
        """
        has_gpus = any(node.get("GPU") for node in nodes)
        gpus, cpus = self.gpus, self.cpus
        if gpus is None:
            gpus = float(has_gpus * self.ranks)
        if cpus is None:
            amounts = (node["CPU"] for node in nodes if has_room(node))
            least = float(self.ranks)
            cpus = least if gpus else min(amounts, default=least)
        if self.ranks > 1 and 0 < gpus < self.ranks:
            raise InvalidRequest(
                f"cannot place a replica: each of its {self.ranks} ranks takes a GPU, "
                f"and '--replica-gpus' is {gpus:g}. Give {self.ranks}, or leave it out"
            )
        return cpus, gpus

    def together(self, nodes: Sequence[Mapping[str, float]]) -> int:
        """Return how many replicas a node may have."""
        cpus, gpus = self.share(nodes)
        counts = rooms(nodes, cpus, gpus)
        most = max(counts, default=1)
        return max(1, min(self.most, most))

    def check(self, nodes: Sequence[Mapping[str, float]]) -> None:
        """Raise InvalidRequest if no node has room for a replica."""
        for name, amount in zip(("CPU", "GPU"), self.share(nodes), strict=True):
            most = max(node.get(name, 0.0) for node in nodes)
            if amount > most:
                raise InvalidRequest(
                    f"cannot place a replica: it takes {amount:g} {name}s, and the "
                    f"largest node has {most:g}. Give fewer with '--replica-"
                    f"{name.lower()}s'"
                )


def rooms(nodes: Sequence[Mapping[str, float]], cpus: float, gpus: float) -> list[int]:
    """Return how many replicas each node has room for; none if they take nothing."""
    amounts = {"CPU": cpus, "GPU": gpus}
    kinds = [name for name in amounts if amounts[name]]
    return [
        min(int(node.get(name, 0.0) // amounts[name]) for name in kinds)
        for node in nodes
        if kinds
    ]


def nodes() -> list[dict[str, float]]:
    """Return the resources of the nodes that live."""
    return [one["Resources"] for one in ray.nodes() if one["Alive"]]


def proxies(settings: Settings) -> str:
    """Return where Ray takes connections: on every node with replicas, if each has the
    host, else on the node of the cluster's head.
    """
    return "EveryNode" if settings.host.strip("[]") in ANYWHERE else "HeadOnly"


def ingresses(settings: Settings, nodes: Sequence[Mapping[str, float]]) -> int:
    """Return how many processes route requests: one for each node that has a proxy; one
    alone where it counts what a key may send.
    """
    if proxies(settings) == "HeadOnly":
        return 1
    if settings.concurrent is not None or settings.rate is not None:
        return 1
    return max(1, sum(map(has_room, nodes)))


def address(settings: Settings) -> str:
    """Return where clients find the server: at the node of the cluster's head."""
    host, port = settings.host, settings.port
    head = host
    for node in ray.nodes():
        if HEAD in node["Resources"]:
            head = node["NodeManagerAddress"]
    if host.strip("[]") in ANYWHERE:
        host = f"[{head}]" if ":" in head else head
    url = f"http://{host}:{port}/v1"
    elsewhere = is_loopback(host) and head != ray.util.get_node_ip_address()
    return f"{url} of {head}, the cluster's head" if elsewhere else url


def has_room(node: Mapping[str, float]) -> bool:
    """Whether a replica may run on a node; the head on Kubernetes has no CPUs."""
    return node.get("CPU", 0.0) >= 1
