"""Provides /metrics: Prometheus metrics under the names that vLLM uses, and metrics
of each drafting method.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING

from prometheus_client import CollectorRegistry, Counter, Histogram, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from foreword.api.llm import LLM
from foreword.server.limits import Limits
from foreword.types import Load

if TYPE_CHECKING:
    from foreword.server.answer import Answer, Choice

SECONDS = (
    0.001,
    0.002,
    0.005,
    0.01,
    0.02,
    0.05,
    0.1,
    0.2,
    0.5,
    1,
    2,
    5,
    10,
    30,
    60,
    300,
)
"""Bounds of the histograms of times."""
DEPTHS = 32
"""Depths of draft tokens that are counted one by one."""


class Metrics:
    """Counters of one server in a registry of its own, so that several servers fit into
    one process.
    """

    def __init__(self, llm: LLM, model: str, limits: Limits) -> None:
        self.registry = CollectorRegistry()
        self._model = model
        self.registry.register(_Gauges(llm, model, limits))
        self._prompt = self._counter(
            "vllm:prompt_tokens", "Prompt tokens of finished answers."
        )
        self._generated = self._counter("vllm:generation_tokens", "Tokens generated.")
        self._success = self._counter(
            "vllm:request_success", "Answers that ended.", "finished_reason"
        )
        self._drafting = _Drafting(self._counter)
        self._left = self._counter(
            "foreword:clients_left", "Answers whose client left before the end."
        )
        self._first = self._histogram(
            "vllm:time_to_first_token_seconds", "From arrival to the first token."
        )
        self._each = self._histogram(
            "vllm:request_time_per_output_token_seconds", "Mean time per further token."
        )
        self._whole = self._histogram(
            "vllm:e2e_request_latency_seconds", "From arrival to the last token."
        )
        self._seconds = _Seconds(self._counter)

    def _counter(self, name: str, text: str, *labels: str) -> Counter:
        return Counter(name, text, ("model_name", *labels), registry=self.registry)

    def _histogram(self, name: str, text: str) -> Histogram:
        return Histogram(
            name, text, ("model_name",), buckets=SECONDS, registry=self.registry
        )

    def ended(self, answer: Answer, choice: Choice) -> None:
        """Count one choice that ended, or that its client left."""
        # clients can name any number of ensembles
        method = answer.call.method.partition("(")[0]
        if choice.index % answer.call.params.n == 0:
            self._prompt.labels(self._model).inc(len(choice.sequence.given))
        self._generated.labels(self._model).inc(choice.tokens)
        self._success.labels(
            self._model, choice.finish_reason if choice.ended else "abort"
        ).inc()
        self._drafting.add(self._model, method, choice)
        self._seconds.add(self._model, method, choice)
        if choice.first is not None:
            self._first.labels(self._model).observe(choice.first - answer.arrived)
            self._whole.labels(self._model).observe(choice.last - answer.arrived)
            if choice.tokens > 1:
                self._each.labels(self._model).observe(
                    (choice.last - choice.first) / (choice.tokens - 1)
                )

    def left(self) -> None:
        """Count a client that left."""
        self._left.labels(self._model).inc()

    def text(self) -> bytes:
        """Return the metrics in Prometheus' text format."""
        return generate_latest(self.registry)


class _Drafting:
    """Counters of draft tokens."""

    def __init__(self, counter: Callable[..., Counter]) -> None:
        self._rounds = counter(
            "vllm:spec_decode_num_drafts", "Rounds that drafted.", "method"
        )
        self._drafted = counter(
            "vllm:spec_decode_num_draft_tokens", "Draft tokens verified.", "method"
        )
        self._accepted = counter(
            "vllm:spec_decode_num_accepted_tokens", "Draft tokens accepted.", "method"
        )
        self._accepted_at = counter(
            "vllm:spec_decode_num_accepted_tokens_per_pos",
            "Draft tokens accepted, by depth.",
            "method",
            "position",
        )
        self._off = counter(
            "foreword:answers_without_drafts",
            "Answers in which nothing was drafted.",
            "reason",
        )

    def add(self, model: str, method: str, choice: Choice) -> None:
        """Count the draft tokens of one choice."""
        stats = choice.sequence.stats
        self._rounds.labels(model, method).inc(stats.drafting_rounds)
        self._drafted.labels(model, method).inc(stats.drafted)
        self._accepted.labels(model, method).inc(stats.accepted)
        for depth, count in enumerate(stats.accepted_at[:DEPTHS]):
            self._accepted_at.labels(model, method, str(depth)).inc(count)
        if not stats.drafted and choice.tokens:
            self._off.labels(model, why_off(choice)).inc()


class _Seconds:
    """Counters of the seconds that rounds took, by step."""

    def __init__(self, counter: Callable[..., Counter]) -> None:
        self._propose = counter(
            "foreword:draft_seconds",
            "Seconds in rounds that went into drafting.",
            "method",
        )
        self._score = counter(
            "foreword:score_seconds",
            "Seconds in rounds that went into the target.",
            "method",
        )

    def add(self, model: str, method: str, choice: Choice) -> None:
        """Count the seconds of one choice."""
        stats = choice.sequence.stats
        self._propose.labels(model, method).inc(stats.propose)
        self._score.labels(model, method).inc(stats.score)


def why_off(choice: Choice) -> str:
    """Return the commonest reason why rounds of a choice drafted nothing."""
    counts = choice.sequence.stats.undrafted
    return max(counts, key=lambda reason: counts[reason]) if counts else "aborted"


class _Gauges(Collector):
    """Gauges read from the engine at each scrape."""

    def __init__(self, llm: LLM, model: str, limits: Limits) -> None:
        self._llm = llm
        self._model = model
        self._limits = limits

    def collect(self) -> Iterable[Metric]:
        """Yield the gauges."""
        load = self._llm.engine.load
        for name, text, value in (
            ("vllm:num_requests_running", "Answers that run.", load.running),
            ("vllm:num_requests_waiting", "Answers that wait.", load.waiting),
            (
                "vllm:kv_cache_usage_perc",
                "Share of the tokens of keys and values in use.",
                _share(load),
            ),
            (
                "foreword:kv_tokens_held",
                "Tokens of keys and values held, kept prefixes too.",
                load.kv_held,
            ),
            (
                "foreword:answers_admitted",
                "Answers that run or wait, by the server's count.",
                self._limits.active,
            ),
        ):
            gauge = GaugeMetricFamily(name, text, labels=("model_name",))
            gauge.add_metric((self._model,), value)
            yield gauge
        for name, text, count in (
            (
                "vllm:num_preemptions",
                "Sequences that gave up their place and were read again.",
                load.preemptions,
            ),
            (
                "vllm:prefix_cache_queries",
                "Prompt tokens looked up in the cache.",
                load.prefix_queries,
            ),
            (
                "vllm:prefix_cache_hits",
                "Prompt tokens taken from the cache.",
                load.prefix_hits,
            ),
        ):
            counter = CounterMetricFamily(name, text, labels=("model_name",))
            counter.add_metric((self._model,), count)
            yield counter


def _share(load: Load) -> float:
    return load.kv_used / load.kv_capacity if load.kv_capacity else 0.0
