"""Provides the metrics of a router: its own, and of every replica by its number."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    Metric,
)
from prometheus_client.parser import text_string_to_metric_families

from foreword.server.replicas.router import Router

REPLICA = "replica"
"""Label with the number of a replica."""


async def merged(router: Router) -> bytes:
    """Return the metrics of all replicas that are ready, in Prometheus' text."""
    texts = await router.models.metrics()
    registry = CollectorRegistry(auto_describe=False)
    registry.register(_Merged(router, texts))
    return generate_latest(registry)


class _Merged:
    """The metrics of one moment."""

    def __init__(self, router: Router, texts: dict[str, str]) -> None:
        self._router = router
        self._texts = texts

    def collect(self) -> Iterator[Metric]:
        """Yield the families of all replicas, then the router's."""
        families: dict[str, Metric] = {}
        for name, text in self._texts.items():
            for one in text_string_to_metric_families(text):
                family = families.setdefault(
                    one.name,
                    Metric(one.name, one.documentation, one.type),
                )
                for sample in one.samples:
                    labels = {**sample.labels, REPLICA: name}
                    family.add_sample(sample.name, labels, sample.value)
        yield from families.values()
        yield from self._own()

    def _own(self) -> Iterable[Metric]:
        router = self._router
        ready = GaugeMetricFamily(
            "foreword:replica_ready",
            "Whether a replica takes requests.",
            labels=[REPLICA],
        )
        for model, pool in router.models.pools.items():
            for one in pool.replicas:
                ready.add_metric([f"{model}{one.name}"], one.ready)
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
