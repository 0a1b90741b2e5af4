"""Prometheus metrics at /metrics: the server's under vLLM's names, each drafting
method's, and the process's.
"""

from collections.abc import Iterable
from itertools import accumulate
from typing import TYPE_CHECKING, NamedTuple

from prometheus_client import (
    CollectorRegistry,
    Counter,
    Histogram,
    ProcessCollector,
    generate_latest,
)
from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    Metric,
)
from prometheus_client.registry import Collector

from foreword.api.llm import LLM
from foreword.engine.meter import SECONDS
from foreword.model.kv.prefixes import PAGE
from foreword.types import Load, Tally
from foreword_server.limits import Limits

if TYPE_CHECKING:
    from foreword_server.answer import Answer, Choice

ENGINE = "0"
"""Number of the engine: a server has one."""
LABELS = ("model_name", "engine")
"""Labels of every metric but the metrics of the process, as vLLM has them."""
COUNTS = tuple(digit * 10**power for power in range(7) for digit in (1, 2, 5))
"""Bounds of the histograms of tokens of a request."""
NUMBERS = (1, 2, 5, 10, 20)
"""Bounds of the histogram of `n`."""
DEPTHS = 32
"""Depths of draft tokens that are counted one by one."""


class _Counted(NamedTuple):
    """A counter: its name, what it counts, and its labels beside LABELS."""

    name: str
    text: str
    labels: tuple[str, ...] = ()


class _Measured(NamedTuple):
    """A histogram: its name, what it measures, and its bounds."""

    name: str
    text: str
    bounds: tuple[float, ...] = SECONDS


COUNTERS = (
    _Counted("vllm:prompt_tokens", "Prompt tokens of finished answers."),
    _Counted("vllm:generation_tokens", "Tokens generated."),
    _Counted("vllm:request_success", "Answers that ended.", ("finished_reason",)),
    _Counted("vllm:spec_decode_num_drafts", "Rounds that drafted.", ("method",)),
    _Counted(
        "vllm:spec_decode_num_draft_tokens", "Draft tokens verified.", ("method",)
    ),
    _Counted(
        "vllm:spec_decode_num_accepted_tokens", "Draft tokens accepted.", ("method",)
    ),
    _Counted(
        "vllm:spec_decode_num_accepted_tokens_per_pos",
        "Draft tokens accepted, by depth.",
        ("method", "position"),
    ),
    _Counted(
        "foreword:answers_without_drafts",
        "Answers in which nothing was drafted.",
        ("reason",),
    ),
    _Counted("foreword:clients_left", "Answers whose client left before the end."),
    _Counted(
        "foreword:draft_seconds",
        "Seconds in rounds that went into drafting.",
        ("method",),
    ),
    _Counted(
        "foreword:score_seconds",
        "Seconds in rounds that went into the target.",
        ("method",),
    ),
)
HISTOGRAMS = (
    _Measured("vllm:time_to_first_token_seconds", "From arrival to the first token."),
    _Measured(
        "vllm:request_time_per_output_token_seconds", "Mean time per further token."
    ),
    _Measured("vllm:e2e_request_latency_seconds", "From arrival to the last token."),
    _Measured(
        "vllm:request_queue_time_seconds",
        "From arrival to the first round that an answer had a part in.",
    ),
    _Measured(
        "vllm:request_prefill_time_seconds",
        "From the first round of an answer to its first token.",
    ),
    _Measured(
        "vllm:request_decode_time_seconds", "From the first token to the last token."
    ),
    _Measured(
        "vllm:request_inference_time_seconds",
        "From the first round of an answer to its last token: prefill and decode.",
    ),
    _Measured(
        "vllm:request_prompt_tokens",
        "Tokens of a prompt; one with several answers counts once.",
        COUNTS,
    ),
    _Measured("vllm:request_generation_tokens", "Tokens of an answer.", COUNTS),
    _Measured(
        "vllm:request_max_num_generation_tokens",
        "Tokens of the longest answer to a prompt.",
        COUNTS,
    ),
    _Measured("vllm:request_params_n", "Answers asked for, of each prompt.", NUMBERS),
    _Measured(
        "vllm:request_params_max_tokens",
        "Most tokens of an answer, of each prompt: max_tokens, or what the context "
        "has room for if that is less.",
        COUNTS,
    ),
)


class Metrics:
    """Counters of one server in a registry of its own: a process may have several."""

    def __init__(self, llm: LLM, model: str, limits: Limits) -> None:
        self.registry = CollectorRegistry()
        self._labels = (model, ENGINE)
        self.registry.register(_Gauges(llm, self._labels, limits))
        ProcessCollector(registry=self.registry)
        self._counters = {
            name: Counter(name, text, (*LABELS, *labels), registry=self.registry)
            for name, text, labels in COUNTERS
        }
        self._histograms = {
            name: Histogram(
                name, text, LABELS, buckets=bounds, registry=self.registry
            ).labels(*self._labels)
            for name, text, bounds in HISTOGRAMS
        }
        for name, _, labels in COUNTERS:
            if not labels:
                self._add(name, 0)  # listed from the start

    def _add(self, name: str, value: float, *labels: str) -> None:
        self._counters[name].labels(*self._labels, *labels).inc(value)

    def _observe(self, name: str, value: float) -> None:
        self._histograms[name].observe(value)

    def ended(self, answer: "Answer", choice: "Choice") -> None:
        """Count one choice that ended, or that its client left."""
        if choice.index % answer.call.params.n == 0:
            self._asked(answer, choice)
        self._add("vllm:generation_tokens", choice.tokens)
        self._observe("vllm:request_generation_tokens", choice.tokens)
        reason = choice.finish_reason if choice.ended else "abort"
        self._add("vllm:request_success", 1, reason)
        # clients can name any number of ensembles
        self._drafted(answer.call.method.partition("(")[0], choice)
        self._timed(answer.arrived, choice)

    def left(self) -> None:
        """Count a client that left."""
        self._add("foreword:clients_left", 1)

    def text(self) -> bytes:
        """Return the metrics in Prometheus' text format."""
        return generate_latest(self.registry)

    def _asked(self, answer: "Answer", first: "Choice") -> None:
        """Count the prompt that the given choice is the first answer to."""
        params = answer.call.params
        prompt = len(first.request.given)
        choices = answer.choices[first.index : first.index + params.n]
        longest = max(choice.tokens for choice in choices)
        self._add("vllm:prompt_tokens", prompt)
        self._observe("vllm:request_prompt_tokens", prompt)
        self._observe("vllm:request_max_num_generation_tokens", longest)
        self._observe("vllm:request_params_n", params.n)
        self._observe("vllm:request_params_max_tokens", params.max_tokens)

    def _drafted(self, method: str, choice: "Choice") -> None:
        """Count the draft tokens of one choice, and the seconds of its rounds."""
        stats = choice.request.stats
        for name, value in (
            ("vllm:spec_decode_num_drafts", stats.drafting_rounds),
            ("vllm:spec_decode_num_draft_tokens", stats.drafted),
            ("vllm:spec_decode_num_accepted_tokens", stats.accepted),
            ("foreword:draft_seconds", stats.propose),
            ("foreword:score_seconds", stats.score),
        ):
            self._add(name, value, method)
        by_depth = "vllm:spec_decode_num_accepted_tokens_per_pos"
        for depth, count in enumerate(stats.accepted_at[:DEPTHS]):
            self._add(by_depth, count, method, str(depth))
        if not stats.drafted and choice.tokens:
            self._add("foreword:answers_without_drafts", 1, why_off(choice))

    def _timed(self, arrived: float, choice: "Choice") -> None:
        """Measure the times of one choice that has begun."""
        moments = choice.request.moments
        if moments.begun is None:
            return
        self._observe("vllm:request_queue_time_seconds", moments.begun - arrived)
        if choice.first is None or moments.first is None or moments.last is None:
            return
        # a round more may have run where a client left, or where the parser stopped
        last = min(moments.last, choice.last)
        decode = last - moments.first
        self._observe("vllm:time_to_first_token_seconds", choice.first - arrived)
        self._observe("vllm:e2e_request_latency_seconds", choice.last - arrived)
        self._observe(
            "vllm:request_prefill_time_seconds", moments.first - moments.begun
        )
        self._observe("vllm:request_decode_time_seconds", decode)
        self._observe("vllm:request_inference_time_seconds", last - moments.begun)
        if choice.tokens > 1:
            mean = decode / (choice.tokens - 1)
            self._observe("vllm:request_time_per_output_token_seconds", mean)


def why_off(choice: "Choice") -> str:
    """Return the commonest reason why rounds of a choice drafted nothing."""
    counts = choice.request.stats.undrafted
    return max(counts, key=lambda reason: counts[reason]) if counts else "aborted"


class _Gauges(Collector):
    """Metrics read from the engine at each scrape."""

    def __init__(self, llm: LLM, labels: tuple[str, str], limits: Limits) -> None:
        self._llm = llm
        self._labels = labels
        self._limits = limits

    def collect(self) -> Iterable[Metric]:
        """Yield the metrics."""
        load, meter = self._llm.engine.load, self._llm.engine.meter
        for name, text, value in self._states(load):
            gauge = GaugeMetricFamily(name, text, labels=LABELS)
            gauge.add_metric(self._labels, value)
            yield gauge
        for name, text, count in _counts(load):
            counter = CounterMetricFamily(name, text, labels=LABELS)
            counter.add_metric(self._labels, count)
            yield counter
        yield self._histogram(
            "vllm:inter_token_latency_seconds",
            "From one round that emitted tokens of a request to the next such round.",
            meter.gaps,
        )
        yield self._histogram(
            "vllm:iteration_tokens_total",
            "Tokens of each round that emitted any: the tokens emitted (accepted draft "
            "tokens and the target's own), and the whole prompt of each request whose "
            "first token is among them.",
            meter.tokens,
        )
        yield from self._cache()
        yield self._limits.responses(dict(zip(LABELS, self._labels, strict=True)))

    def _states(self, load: Load) -> tuple[tuple[str, str, float], ...]:
        return (
            ("vllm:num_requests_running", "Answers that run.", load.running),
            ("vllm:num_requests_waiting", "Answers that wait.", load.waiting),
            (
                "vllm:kv_cache_usage_perc",
                "Share of the tokens of keys and values in use.",
                load.kv_used / load.kv_capacity if load.kv_capacity else 0.0,
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
        )

    def _histogram(self, name: str, text: str, tally: Tally) -> Metric:
        histogram = HistogramMetricFamily(name, text, labels=LABELS)
        bounds = [*map(str, map(float, tally.bounds)), "+Inf"]
        buckets = [*zip(bounds, accumulate(tally.counts), strict=True)]
        histogram.add_metric(self._labels, buckets, tally.total)
        return histogram

    def _cache(self) -> Iterable[Metric]:
        """Yield what the pool of keys and values is like, if the target has one."""
        target = self._llm.target
        pool = target.backend.pool
        if pool is None:
            return
        labels = {
            **dict(zip(LABELS, self._labels, strict=True)),
            "block_size": str(PAGE),
            "cache_dtype": target.kv or "auto",
            "enable_prefix_caching": str(not pool.adjacent),
            "num_gpu_blocks": str(pool.limit and pool.limit // PAGE),
        }
        text = "Pages of keys and values, on whichever device; always 1."
        info = GaugeMetricFamily("vllm:cache_config_info", text, labels=[*labels])
        info.add_metric([*labels.values()], 1)
        yield info


def _counts(load: Load) -> tuple[tuple[str, str, int], ...]:
    return (
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
    )
