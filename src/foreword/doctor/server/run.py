"""Diagnosis of a running server from its metrics."""

from __future__ import annotations

from foreword.doctor.finding import Diagnosis, Finding, ranked
from foreword.doctor.server import drafting, load
from foreword.doctor.server.metrics import scrape

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
    for counts in found:
        for check in OF_METHODS:
            findings += check(counts)
    for check in OF_LOAD:
        findings += check(metrics)
    work = {one.method: one.as_json() for one in found}
    lines = [one.summary for one in found]
    kind = "foreword" if metrics.is_ours else "vllm"
    return Diagnosis(
        subject={"server": address, "kind": kind},
        work=work,
        lines=(metrics.summary, *lines),
        findings=ranked(findings),
    )
