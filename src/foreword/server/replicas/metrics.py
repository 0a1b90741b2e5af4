"""Provides the metrics of a router: its own, and of every replica by its number."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping

from prometheus_client import CollectorRegistry, ProcessCollector, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from foreword.server.replicas.router import Router

REPLICA = "replica"
"""Label with the number of a replica."""
ROUTER = "router"
"""Its value in metrics of the router's process."""


async def merged(router: Router) -> bytes:
    """Return the metrics of all replicas that are ready, in Prometheus' text."""
    replicas = await router.models.metrics()
    process = CollectorRegistry()
    ProcessCollector(registry=process)
    counted = CollectorRegistry(auto_describe=False)
    counted.register(_Counted(router))
    own = generate_latest(process).decode()
    texts = {ROUTER: own, **replicas}
    together = labelled(texts).encode()
    return together + generate_latest(counted)


def labelled(texts: Mapping[str, str]) -> str:
    """Return the metrics of several processes as one text, each sample with the name of
    its process. Lines are not parsed further: every stream waits meanwhile.
    """
    heads: dict[str, dict[str, str]] = defaultdict(dict)
    samples: dict[str, list[str]] = defaultdict(list)
    for name, text in texts.items():
        family = ""
        for line in text.splitlines():
            if line.startswith("#"):
                _, kind, family, _ = line.split(" ", 3)
                heads[family].setdefault(kind, line)
                continue
            end = line.index("{" if "{" in line else " ")
            metric, rest = line[:end], line[end:].removeprefix("{")
            mark = "," if "{" in line else "}"
            label = f'{REPLICA}="{name}"{mark}'
            samples[family].append(f"{metric}{{{label}{rest}")
    lines: list[str] = []
    for family, head in heads.items():
        lines += [*head.values(), *samples[family]]
    return "".join(f"{line}\n" for line in lines)


class _Counted(Collector):
    """What the router itself counts."""

    def __init__(self, router: Router) -> None:
        self._router = router

    def collect(self) -> Iterable[Metric]:
        """Yield the metrics."""
        router = self._router
        ready = GaugeMetricFamily(
            "foreword:replica_ready",
            "Whether a replica takes requests.",
            labels=[REPLICA],
        )
        for model, pool in router.models.pools.items():
            for replica in pool.replicas:
                ready.add_metric([f"{model}{replica.name}"], replica.ready)
        yield ready
        yield CounterMetricFamily(
            "foreword:replica_restarts",
            "Replicas that ended and were started again.",
            value=router.models.restarts,
        )
        yield CounterMetricFamily(
            "foreword:requests_continued",
            "Requests that went on at another replica.",
            value=router.continued,
        )
        yield router.limits.responses({})
