"""Diagnosis of a running server from its metrics: its drafting, and causes in its
load: prompts read again, queues, memory and batch size.
"""

from foreword_lab.doctor.finding import MATTERS, Diagnosis, Finding, ranked
from foreword_lab.doctor.server import drafting
from foreword_lab.doctor.server.metrics import ServerMetrics, scrape

COLD = 0.1
"""Share of prompt tokens taken from the cache, below which it does not help."""
LOOKED_UP = 1000
"""Prompt tokens, below which their share says nothing."""
FULL = 0.9
"""Share of the memory of keys and values in use, from which answers soon wait."""
CROWD = 16
"""Answers at a time, from which a forward over draft tokens is no longer nearly free
(docs/benchmarks/batches.md).
"""


def cold_prefixes(metrics: ServerMetrics) -> list[Finding]:
    """Compare prompt tokens taken from the cache with those looked up."""
    queries = metrics.total(
        "vllm:prefix_cache_queries_total", "vllm:gpu_prefix_cache_queries_total"
    )
    hits = metrics.total(
        "vllm:prefix_cache_hits_total", "vllm:gpu_prefix_cache_hits_total"
    )
    if queries < LOOKED_UP:
        return []
    evidence = (
        f"{hits / queries:.0%} of {queries:,.0f} prompt tokens were taken from the "
        "prefix cache"
    )
    if hits >= COLD * queries:
        return [Finding("good", "prefix cache", evidence)]
    prefill = metrics.total("vllm:request_prefill_time_seconds_sum")
    whole = metrics.total("vllm:request_inference_time_seconds_sum")
    cost = 1.0
    if 0 < prefill < whole:
        evidence += f"; reading prompts takes {prefill / whole:.0%} of the time"
        cost = whole / (whole - prefill)
    remedy = (
        "Put what prompts share at their beginning, keep the server running, and give "
        "it more memory: foreword serve --cache-tokens; vLLM --enable-prefix-caching"
    )
    return [Finding("note", "cold prefix cache", evidence, remedy, cost)]


def queue(metrics: ServerMetrics) -> list[Finding]:
    """Report the share of the time that answers wait."""
    waiting = metrics.total("vllm:num_requests_waiting")
    waited = metrics.total("vllm:request_queue_time_seconds_sum")
    whole = metrics.total("vllm:e2e_request_latency_seconds_sum")
    cost = whole / (whole - waited) if 0 < waited < whole else 1.0
    if not waiting and cost < MATTERS:
        return []
    evidence = f"{waiting:,.0f} answers wait now"
    if whole:
        evidence += f"; an answer waits {waited / whole:.0%} of its time"
    remedy = (
        "Let more answers run at a time (foreword serve --slots, vLLM --max-num-seqs), "
        "give them more memory, or add a server"
    )
    return [Finding("note", "queue", evidence, remedy, cost)]


def memory(metrics: ServerMetrics) -> list[Finding]:
    """Report sequences that gave up their place, and memory that is full."""
    preempted = metrics.total("vllm:num_preemptions_total")
    used = metrics.largest("vllm:kv_cache_usage_perc", "vllm:gpu_cache_usage_perc")
    if not preempted and used < FULL:
        return []
    generated = metrics.total("vllm:request_success_total")
    evidence = (
        f"{preempted:,.0f} sequences gave up their keys and values and were read "
        f"again, beside {generated:,.0f} answers; {used:.0%} of the memory is in use"
    )
    remedy = (
        "Give keys and values more memory (foreword serve --cache-tokens or --kv int8, "
        "vLLM --gpu-memory-utilization), or run fewer answers at a time (--slots, "
        "--max-num-seqs)"
    )
    # each of them is read once more
    cost = 1 + preempted / generated if generated and preempted else 1.0
    prefill = metrics.total("vllm:request_prefill_time_seconds_sum")
    whole = metrics.total("vllm:request_inference_time_seconds_sum")
    share = prefill / whole if 0 < prefill < whole else 0.0
    return [
        Finding(
            "note",
            "memory full",
            evidence,
            remedy,
            cost=1 + (cost - 1) * share,
        )
    ]


def crowd(metrics: ServerMetrics) -> list[Finding]:
    """Report many answers at a time."""
    running = metrics.largest("vllm:num_requests_running")
    if running < CROWD:
        return []
    evidence = (
        f"{running:,.0f} answers run at a time now: a forward over their draft tokens "
        "costs more than one without"
    )
    remedy = (
        "Draft fewer tokens under load: the default budget of Foreword does, vLLM "
        "takes a smaller num_speculative_tokens; or spread the requests"
    )
    return [Finding("note", "high load", evidence, remedy)]


OF_METHODS = (drafting.low_acceptance, drafting.length, drafting.dear_drafter)
"""Checks of the counts of one method."""
OF_LOAD = (cold_prefixes, queue, memory, crowd)
"""Checks of the whole server."""


def examine_server(url: str, key: str | None = None) -> Diagnosis:
    """Read the metrics of a server and diagnose it.

    Raises InvalidRequest if it cannot be reached, or its metrics say nothing yet.
    """
    address, metrics = scrape(url, key)
    methods = drafting.methods(metrics)
    findings: list[Finding] = [*drafting.off(metrics, methods)]
    for counts in methods:
        for check in OF_METHODS:
            findings += check(counts)
    for check in OF_LOAD:
        findings += check(metrics)
    work = {one.method: one.as_json() for one in methods}
    lines = [one.summary for one in methods]
    kind = "foreword" if metrics.is_ours else "vllm"
    return Diagnosis(
        subject={"server": address, "kind": kind},
        work=work,
        lines=(metrics.summary, *lines),
        findings=ranked(findings),
    )
