"""Diagnosis of a running server from its metrics."""

from __future__ import annotations

from foreword.doctor.finding import Diagnosis, Finding, ranked
from foreword.doctor.server import drafting, load
from foreword.doctor.server.metrics import GENERATED, ServerMetrics, scrape

OF_METHODS = (drafting.low_acceptance, drafting.length, drafting.dear_drafter)
"""Checks of the counts of one method."""
OF_LOAD = (load.cold_prefixes, load.queue, load.memory, load.crowd)
"""Checks of the whole server."""


def examine_server(url: str, key: str | None = None) -> Diagnosis:
    """Read the metrics of a server and diagnose it.

    Raises ModelError if it cannot be reached, InvalidRequest if its metrics say nothing
    yet, or are none.
    """
    address, metrics = scrape(url, key)
    found = drafting.methods(metrics)
    findings: list[Finding] = [*drafting.off(metrics, found)]
    for check in OF_METHODS:
        findings += [one for counts in found for one in check(counts)]
    for check in OF_LOAD:
        findings += check(metrics)
    return Diagnosis(
        subject={
            "server": address,
            "kind": "foreword" if metrics.is_ours else "vllm",
        },
        work={counts.method: counts.as_json() for counts in found},
        lines=(_line(metrics), *map(_method_line, found)),
        findings=ranked(findings),
    )


def _line(metrics: ServerMetrics) -> str:
    return (
        f"{metrics.total(GENERATED):,.0f} tokens in "
        f"{metrics.total('vllm:request_success_total'):,.0f} answers"
    )


def _method_line(counts: drafting.MethodCounts) -> str:
    return (
        f"{counts.named}{1 + counts.accepted / counts.drafts:.2f} tokens per drafting "
        f"round with {counts.tokens / counts.drafts:.1f} draft tokens, "
        f"{counts.speed:.2f}× plain decoding predicted"
    )
