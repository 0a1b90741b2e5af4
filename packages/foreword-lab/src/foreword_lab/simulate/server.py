"""Costs of a running server, from its budget's table and the counts of its rounds."""

from collections.abc import Mapping
from dataclasses import dataclass
from statistics import median
from time import perf_counter
from typing import Any

from foreword.errors import InvalidRequest, words
from foreword_lab.certify.remote.client import Broken, Server, Unsupported
from foreword_lab.doctor.server.metrics import GENERATED, ServerMetrics, scrape
from foreword_lab.simulate.costs import ReplicaCosts
from foreword_lab.simulate.fields import parsed

MILLI = 1000
PROBES = 9
"""Requests that time the way to the server and back; the median counts."""
DRAFTED = "vllm:spec_decode_num_draft_tokens_total"
ACCEPTED = "vllm:spec_decode_num_accepted_tokens_per_pos_total"


def costs_of(url: str, key: str | None = None) -> ReplicaCosts:
    """Return the costs of a server of Foreword, as its rounds so far have shown them.

    Raises InvalidRequest if it cannot be reached, or has counted no answer yet, or is
    of another kind.
    """
    (address, metrics) = scrape(url, key)
    if not metrics.is_ours:
        raise InvalidRequest(
            f"cannot read costs from {address}: the server is not Foreword's. Give "
            "'--costs'"
        )
    base = address.removesuffix("/metrics")
    server = Server.at(base, key, model="")
    described = _described(server, base)
    counted = Counted.of(metrics)
    return _costs(described, counted, _way(server, base), base)


@dataclass(frozen=True, slots=True, kw_only=True)
class Counted:
    """Means of a server over all its rounds."""

    batch: float
    """Sequences that write in a round."""
    context: float
    """Tokens of a sequence, in the middle of its answer."""
    drafted: float
    """Draft tokens of a sequence in a round."""
    shares: tuple[float, ...]
    """Share of the rounds that write 1, 2, 3 … tokens of a sequence."""
    prompts: float
    """Prompt tokens that a round reads."""
    draft: float
    """Seconds of drafting in a round, the reading of prompts included."""
    score: float
    """Seconds of the forward of the target in a round."""
    other: float
    """Seconds of a round beside drafting and the forward of the target."""
    delivery: float
    """Seconds from the first tokens of an answer to when they are sent."""

    @classmethod
    def of(cls, metrics: ServerMetrics) -> "Counted":
        """Return what the metrics of a server of Foreword say."""
        total = metrics.total
        answers = _summed(metrics, "time_to_first_token_seconds", "count")
        gaps = _summed(metrics, "inter_token_latency_seconds", "count")
        written = answers + gaps
        rounds = _summed(metrics, "iteration_tokens_total", "count")
        if not answers or not rounds:
            raise InvalidRequest(
                "cannot read costs from the server: none of its answers has a token. "
                "Send it some requests first"
            )
        prompts = total("vllm:prompt_tokens_total")
        cached = total("vllm:prefix_cache_hits_total")
        draft = total("foreword:draft_seconds_total")
        score = total("foreword:score_seconds_total")
        inference = _summed(metrics, "request_inference_time_seconds")
        first = _summed(metrics, "time_to_first_token_seconds")
        queued = _summed(metrics, "request_queue_time_seconds")
        prefill = _summed(metrics, "request_prefill_time_seconds")
        return cls(
            batch=written / rounds,
            context=(prompts + total(GENERATED) / 2) / answers,
            drafted=total(DRAFTED) / written,
            shares=_shares(metrics, written),
            prompts=max(prompts - cached, 0.0) / rounds,
            draft=draft / written,
            score=score / written,
            other=max(inference - draft - score, 0.0) / written,
            delivery=max(first - queued - prefill, 0.0) / answers,
        )


def _summed(metrics: ServerMetrics, name: str, part: str = "sum") -> float:
    """Return the sum of a histogram, or its count."""
    return metrics.total(f"vllm:{name}_{part}")


def _shares(metrics: ServerMetrics, written: float) -> tuple[float, ...]:
    """Return the share of the rounds that write 1, 2, … tokens: accepted draft tokens
    and one of the target.
    """
    by_depth = metrics.by("position", ACCEPTED)
    counts = [by_depth[depth] for depth in sorted(by_depth, key=int)]
    at_least = [1.0]
    for count in counts:
        at_least.append(min(count / written, at_least[-1]))
    at_least.append(0.0)
    places = range(len(at_least) - 1)
    return tuple(at_least[at] - at_least[at + 1] for at in places)


def _described(server: Server, base: str) -> Mapping[str, Any]:
    """Return what the server says of its costs and limits."""
    url = f"{base}/speculation"
    try:
        text = server.text(url)
    except (Unsupported, Broken) as error:
        raise InvalidRequest(
            f"cannot read costs from {base}: {words(error)}. Give '--costs'"
        ) from error
    values = parsed(text, url)
    if {"costs", "scheduling"} <= set(values):
        return values
    raise InvalidRequest(
        f"cannot read costs from {url}: it names none. Update the server, or give "
        "'--costs'"
    )


def _way(server: Server, base: str) -> float:
    """Return the seconds of a request to the server that does next to nothing."""
    times = []
    for _ in range(PROBES):
        before = perf_counter()
        server.text(f"{base}/health")
        times.append(perf_counter() - before)
    return median(times)


def _costs(
    described: Mapping[str, Any], counted: Counted, way: float, base: str
) -> ReplicaCosts:
    """Return the costs of one replica from what the server says and has counted."""
    costs = described["costs"]
    sequence = costs["overhead_ms"] / MILLI
    prompt_token = _reading(costs["drafting"], counted)
    seconds = max(counted.draft - prompt_token * counted.prompts, 0.0)
    (draft, draft_token) = _drafting(costs["drafting"], counted, seconds)
    return ReplicaCosts(
        forward=forward_table(costs["forward_ms"], counted),
        context=counted.context,
        context_token=costs["context_ms"] / MILLI,
        prompt_token=prompt_token,
        draft=draft,
        draft_token=draft_token,
        sequence=sequence,
        round=max(counted.other - sequence * counted.batch, 0.0),
        request=way + counted.delivery,
        draft_tokens=counted.drafted,
        tokens=counted.shares,
        **described["scheduling"],
        where=f"the costs of {base}",
    )


def forward_table(milli: Mapping[str, float], counted: Counted) -> dict[int, float]:
    """Return the seconds of a forward by its rows.

    The table of the budget follows the last rounds. It is made to rise, and scaled so
    that a mean round takes what all rounds took. Prompts are read many tokens at a
    time, so each token counts as a row beyond the table.
    """
    pairs = [(int(rows), one / MILLI) for rows, one in milli.items()]
    table = {
        rows: min(seconds for wider, seconds in pairs if wider >= rows)
        for rows, _ in pairs
    }
    rows = counted.batch * (1 + counted.drafted)
    costs = ReplicaCosts(forward=table)
    expected = costs.forward_seconds(rows) + costs.further_row * counted.prompts
    scale = counted.score / expected if counted.score else 1.0
    return {rows: scale * seconds for rows, seconds in table.items()}


def _drafting(
    measured: Mapping[str, float] | None, counted: Counted, seconds: float
) -> tuple[float, float]:
    """Return the seconds of drafting in a round, fixed and for each draft token.

    Both together are the `seconds` that a round took; the budget's line says how much
    of it grows with the draft tokens.
    """
    drafted = counted.drafted * counted.batch
    if not drafted:
        return 0.0, 0.0
    if measured is None:
        return seconds, 0.0
    growing = measured["token_ms"] * drafted
    share = growing / max(growing + measured["start_ms"], growing, 1e-12)
    fixed = seconds * (1 - share)
    return fixed, seconds * share / drafted


def _reading(measured: Mapping[str, float] | None, counted: Counted) -> float:
    """Return the seconds that the drafter takes for each prompt token."""
    if measured is None or not counted.drafted:
        return 0.0
    return measured["unread_ms"] / MILLI
