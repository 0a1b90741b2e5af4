"""The metrics of a board for vLLM: names, types, labels, and their counts."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families

from foreword import LLM
from foreword.model.kv.prefixes import PAGE
from foreword.types import Tally
from serving import Running

HISTOGRAMS = (
    "vllm:time_to_first_token_seconds",
    "vllm:inter_token_latency_seconds",
    "vllm:request_time_per_output_token_seconds",
    "vllm:e2e_request_latency_seconds",
    "vllm:request_queue_time_seconds",
    "vllm:request_prefill_time_seconds",
    "vllm:request_decode_time_seconds",
    "vllm:request_inference_time_seconds",
    "vllm:request_prompt_tokens",
    "vllm:request_generation_tokens",
    "vllm:request_max_num_generation_tokens",
    "vllm:request_params_n",
    "vllm:request_params_max_tokens",
    "vllm:iteration_tokens_total",
)
ASKED: tuple[dict[str, Any], ...] = (
    {"max_tokens": 24, "n": 2},
    {"max_tokens": 7, "n": 1},
    {"max_tokens": 1, "n": 3},
)


@dataclass(frozen=True)
class Scraped:
    """What one scrape found."""

    types: dict[str, str]
    labels: dict[str, list[dict[str, str]]]
    """Labels of every sample of a metric."""
    values: Counter[str]
    """Sums over the labels, by name of the sample."""

    def since(self, before: Scraped, name: str) -> float:
        """How much a value has grown."""
        return self.values[name] - before.values[name]


def scrape(server: Running) -> Scraped:
    """Read /metrics as Prometheus does."""
    found = Scraped({}, {}, Counter())
    for family in text_string_to_metric_families(server.http.get("/metrics").text):
        found.types[family.name] = family.type
        found.labels[family.name] = [one.labels for one in family.samples]
        for one in family.samples:
            found.values[one.name] += one.value
    return found


def ask(server: Running) -> list[dict[str, Any]]:
    """Return the answers to ASKED, with their rounds."""
    return [
        server.post(
            "/v1/chat/completions",
            messages=[{"role": "user", "content": "Summarise: The river rose."}],
            ignore_eos=True,
            speculative={"method": "lm", "nodes": 4, "trace": True},
            **asked,
        )
        for asked in ASKED
    ]


@pytest.fixture
def idle(llm: LLM) -> Callable[[Running], None]:
    """Return a function that waits until no answer of an earlier test runs."""

    def wait(server: Running) -> None:
        while not llm.engine.idle:
            server.http.get("/health")  # the test's own timeout ends it otherwise

    return wait


def test_a_board_for_vllm_finds_its_metrics(serving):
    with serving() as server:
        fresh = scrape(server)
        ask(server)
        found = scrape(server)
    # also before the first request
    for scraped in (fresh, found):
        assert {scraped.types.get(name) for name in HISTOGRAMS} == {"histogram"}
    assert found.types["vllm:cache_config_info"] == "gauge"
    everywhere = {"engine": "0", "model_name": "foreword-family"}
    for name, several in found.labels.items():
        own = not name.startswith("process_")
        assert all((everywhere.items() <= one.items()) == own for one in several), name


def test_counts_are_of_the_requests_made(serving, idle):
    with serving() as server:
        idle(server)
        before = scrape(server)
        answers = ask(server)
        found = scrape(server)
    prompts = [one["usage"]["prompt_tokens"] for one in answers]
    written = sum(one["usage"]["completion_tokens"] for one in answers)
    rounds = [
        len(choice["rounds"]) for answer in answers for choice in answer["choices"]
    ]
    several = [asked["n"] for asked in ASKED]
    limits = [asked["max_tokens"] for asked in ASKED]
    sums = {
        "vllm:request_params_n": (len(ASKED), sum(several)),
        "vllm:request_params_max_tokens": (len(ASKED), sum(limits)),
        "vllm:request_prompt_tokens": (len(ASKED), sum(prompts)),
        "vllm:request_max_num_generation_tokens": (len(ASKED), sum(limits)),
        "vllm:request_generation_tokens": (sum(several), written),
    }
    for name, expected in sums.items():
        grown = (found.since(before, f"{name}{end}") for end in ("_count", "_sum"))
        assert (*grown,) == expected, name
    read = sum(prompt * n for prompt, n in zip(prompts, several, strict=True))
    emitted = found.since(before, "vllm:iteration_tokens_total_sum")
    assert emitted == read + written
    gaps = found.since(before, "vllm:inter_token_latency_seconds_count")
    assert gaps == sum(rounds) - len(rounds) > 0


def test_the_times_of_answers_add_up(serving):
    with serving() as server:
        ask(server)
        found = scrape(server).values
    answers = sum(asked["n"] for asked in ASKED)
    names = ("queue", "prefill", "decode", "inference")
    times = {name: f"vllm:request_{name}_time_seconds" for name in names}
    assert [found[f"{name}_count"] for name in times.values()] == [answers] * 4
    seconds = {name: found[f"{times[name]}_sum"] for name in names}
    assert min(seconds.values()) > 0
    assert seconds["inference"] == pytest.approx(seconds["prefill"] + seconds["decode"])
    first = found["vllm:time_to_first_token_seconds_sum"]
    assert seconds["queue"] + seconds["prefill"] <= first
    whole = found["vllm:e2e_request_latency_seconds_sum"]
    assert seconds["queue"] + seconds["inference"] <= whole


def test_the_pool_and_the_process_are_described(server, llm):
    found = scrape(server)
    (info,) = found.labels["vllm:cache_config_info"]
    assert info["block_size"] == str(PAGE)
    assert info["num_gpu_blocks"] == str(llm.target.cache_tokens // PAGE)
    assert (info["cache_dtype"], info["enable_prefix_caching"]) == ("auto", "True")
    assert found.values["vllm:cache_config_info"] == 1
    assert found.types["process_cpu_seconds"] == "counter"
    assert found.values["process_resident_memory_bytes"] > 0


def test_head_answers_without_a_body(server):
    answer = server.http.head("/metrics")
    assert (answer.status_code, answer.content) == (200, b"")
    assert answer.headers["content-type"].startswith("text/plain")


def test_a_tally_counts_a_value_at_its_bound():
    tally = Tally((1, 8))
    for value in (0.5, 1, 1.5, 8, 9):
        tally.add(value)
    assert tally.counts == [2, 2, 1]
    assert tally.total == 20
