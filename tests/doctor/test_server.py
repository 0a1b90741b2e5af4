"""Metrics show what costs speed: those of our own server, and of vLLM."""

import json
import socket
from collections.abc import Iterator

import pytest

import starter
from foreword import LLM
from foreword.errors import InvalidRequest
from foreword_lab.doctor.finding import Diagnosis, Finding
from foreword_lab.doctor.formulas import PassCost, speed_up
from foreword_lab.doctor.server.run import examine_server
from foreword_server.settings import hashed
from serving import Running, running

LABELS = 'engine="0",model_name="m"'
HEALTHY = {
    "vllm:generation_tokens_total": 4000,
    "vllm:request_success_total": 100,
    "vllm:spec_decode_num_drafts_total": 1000,
    "vllm:spec_decode_num_draft_tokens_total": 4000,
    "vllm:spec_decode_num_accepted_tokens_total": 2430,
    "vllm:num_requests_running": 2,
    "vllm:num_requests_waiting": 0,
    "vllm:kv_cache_usage_perc": 0.1,
    "vllm:num_preemptions_total": 0,
    "vllm:prefix_cache_queries_total": 20000,
    "vllm:prefix_cache_hits_total": 15000,
    "vllm:request_queue_time_seconds_sum": 0,
    "vllm:request_prefill_time_seconds_sum": 40,
    "vllm:request_inference_time_seconds_sum": 100,
    "vllm:e2e_request_latency_seconds_sum": 100,
}
"""Sums of a server whose drafting and load are as they should be."""
BY_DEPTH = (860, 700, 520, 350)


def text(by_depth: tuple[int, ...] = BY_DEPTH, **changes: float) -> str:
    """Return metrics as vLLM writes them."""
    values = HEALTHY | {f"vllm:{name}": value for name, value in changes.items()}
    lines = [
        "# HELP vllm:num_requests_running Number of requests in model execution.",
        "# TYPE vllm:num_requests_running gauge",
        *(f"{name}{{{LABELS}}} {float(value)}" for name, value in values.items()),
        *(
            "vllm:spec_decode_num_accepted_tokens_per_pos_total"
            f'{{{LABELS},position="{place}"}} {float(count)}'
            for place, count in enumerate(by_depth)
        ),
    ]
    return "\n".join(lines) + "\n"


def named(found: Diagnosis, name: str) -> Finding:
    (finding,) = [one for one in found.findings if one.name == name]
    return finding


@pytest.fixture(scope="module")
def llm() -> Iterator[LLM]:
    with LLM(str(starter.target()), draft=str(starter.draft()), nodes=4) as llm:
        yield llm


@pytest.fixture
def server(llm: LLM) -> Iterator[Running]:
    with running(llm) as server:
        yield server


def write(server: Running, count: int, **more: object) -> None:
    for number in range(count):
        server.post(
            "/v1/completions",
            prompt=f"{number} rivers carry water from the mountains to the sea. " * 20,
            max_tokens=16,
            ignore_eos=True,
            **more,
        )


def test_our_own_server_is_examined(server: Running) -> None:
    with pytest.raises(InvalidRequest, match="it counts no answer yet"):
        examine_server(server.url)
    write(server, 5)
    found = examine_server(f"{server.url}/v1/")
    assert found.subject == {"server": f"{server.url}/metrics", "kind": "foreword"}
    (work,) = found.work.values()
    assert set(found.work) == {"lm"}
    assert work["draft_tokens"] >= work["accepted"] > 0
    assert work["drafting_over_scoring"] > 0
    assert "of the time of the rounds" in named(found, "dear drafter").evidence
    cold = named(found, "cold prefix cache")
    assert "0% of " in cold.evidence
    assert cold.cost > 1
    costs = [cause.cost for cause in found.causes]
    assert costs == sorted(costs, reverse=True)


def test_cache_of_our_server_warms_up(server: Running) -> None:
    write(server, 4)
    write(server, 4)
    assert named(examine_server(server.url), "prefix cache").level == "good"


def test_our_server_without_drafts_is_found(server: Running) -> None:
    write(server, 2, speculative={"method": "none"})
    found = examine_server(server.url)
    off = named(found, "drafting off")
    assert not found.healthy
    assert "method: 2" in off.evidence
    assert "--draft" in off.remedy


def test_answers_without_drafts_are_counted(server: Running) -> None:
    write(server, 3)
    write(server, 1, speculative={"method": "none"})
    found = examine_server(server.url)
    some = named(found, "answers without drafts")
    assert some.evidence == "25% of the answers had no draft token (method: 1)"
    assert "drafting off" not in {one.name for one in found.findings}


def test_metrics_that_need_a_key_are_read_with_it(llm: LLM) -> None:
    with running(llm, keys=hashed(["secret"])) as server:
        with pytest.raises(InvalidRequest, match=r"401.*Give '--key'"):
            examine_server(server.url)
        with pytest.raises(InvalidRequest, match="counts no answer yet"):
            examine_server(server.url, "secret")


def test_healthy_server_of_vllm_has_no_cause(serving) -> None:
    with serving(text()) as url:
        found = examine_server(url)
    assert found.causes == ()
    assert found.subject["kind"] == "vllm"
    assert "86% of the first draft tokens" in named(found, "acceptance").evidence


def test_low_acceptance_is_found(serving) -> None:
    counts = {"spec_decode_num_accepted_tokens_total": 60}
    with serving(text((50, 8, 2, 0), **counts)) as url:
        found = examine_server(url)
    cause = named(found, "low acceptance")
    assert (cause.level, found.healthy) == ("bad", False)
    assert "5% of the first draft tokens are accepted, and 2% of all" in cause.evidence
    assert found.causes[0] == cause
    now = speed_up(1.06, 4, PassCost(token=0.05))
    assert cause.cost == pytest.approx(cause.speed / now)


def test_too_many_draft_tokens_are_found(serving) -> None:
    counts = {
        "spec_decode_num_draft_tokens_total": 8000,
        "spec_decode_num_accepted_tokens_total": 1110,
    }
    with serving(text((700, 300, 100, 10, 0, 0, 0, 0), **counts)) as url:
        cause = named(examine_server(url), "too many draft tokens")
    assert "1.11 of 8 draft tokens" in cause.evidence
    assert "the last in 0% of the rounds" in cause.evidence
    assert "Draft 3 tokens a round" in cause.remedy
    three = speed_up(2.1, 3, PassCost(token=0.05))
    eight = speed_up(2.11, 8, PassCost(token=0.05))
    assert cause.cost == pytest.approx(three / eight)


def test_too_few_draft_tokens_are_found(serving) -> None:
    counts = {
        "spec_decode_num_draft_tokens_total": 2000,
        "spec_decode_num_accepted_tokens_total": 1860,
    }
    with serving(text((950, 910), **counts)) as url:
        cause = named(examine_server(url), "too few draft tokens")
    assert "Draft about 4 tokens" in cause.remedy
    assert cause.cost > 1.2


@pytest.mark.parametrize(
    ("changes", "name", "evidence", "cost"),
    [
        (
            {"prefix_cache_hits_total": 100},
            "cold prefix cache",
            "0% of 20,000 prompt tokens",
            100 / 60,
        ),
        (
            {"num_requests_waiting": 7, "request_queue_time_seconds_sum": 50},
            "queue",
            "7 answers wait now; an answer waits 50% of its time",
            2,
        ),
        (
            {"num_preemptions_total": 50, "kv_cache_usage_perc": 0.99},
            "memory full",
            "50 sequences gave up",
            1.2,
        ),
        ({"num_requests_running": 64}, "high load", "64 answers run at a time now", 1),
    ],
)
def test_load_is_found(serving, changes, name, evidence, cost) -> None:
    with serving(text(**changes)) as url:
        cause = named(examine_server(url), name)
    assert evidence in cause.evidence
    assert cause.cost == pytest.approx(cost)
    assert cause.remedy


def test_engines_are_not_added_up(serving) -> None:
    one = text(kv_cache_usage_perc=0.6, num_requests_running=10)
    two = one + one.replace('engine="0"', 'engine="1"')
    with serving(two) as url:
        found = examine_server(url)
    assert {"memory full", "high load"}.isdisjoint(one.name for one in found.findings)
    assert found.work[""]["drafts"] == 2000


def test_server_without_drafting_is_found(serving) -> None:
    kept = [line for line in text().splitlines() if "spec_decode" not in line]
    with serving("\n".join(kept) + "\n") as url:
        found = examine_server(url)
    assert "no counts of draft tokens" in named(found, "drafting off").evidence
    assert "--speculative-config" in found.causes[0].remedy


@pytest.mark.parametrize(
    ("served", "message"),
    [
        ("<html><body>Welcome</body></html>", "not in the text format of Prometheus"),
        ("up 1.0\n", "no metrics with names of vLLM"),
        ("", "no metrics with names of vLLM"),
        (text(generation_tokens_total=0), "counts no answer yet"),
    ],
)
def test_other_texts_are_refused(serving, served, message) -> None:
    with serving(served) as url, pytest.raises(InvalidRequest, match=message):
        examine_server(url)


def test_pages_that_are_missing_are_refused(serving) -> None:
    with serving("up 1.0") as url, pytest.raises(InvalidRequest, match="status 404"):
        examine_server(f"{url}/elsewhere")


def test_server_that_does_not_run_is_refused() -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
        with pytest.raises(InvalidRequest, match=r"cannot reach.*that the server runs"):
            examine_server(f"http://127.0.0.1:{port}")


def test_command_ranks_causes_and_says_what_is_wrong(here, serving) -> None:
    counts = {"spec_decode_num_accepted_tokens_total": 60, "num_requests_waiting": 3}
    with serving(text((50, 8, 2, 0), **counts)) as url:
        shown = here("doctor", "--url", url)
        facts = here("doctor", "--url", url, "--json")
    assert shown.returncode == 1
    assert "1. low acceptance: up to" in shown.stdout
    found = json.loads(facts.stdout)
    assert (found["kind"], found["healthy"]) == ("vllm", False)
    assert found["findings"][0]["name"] == "low acceptance"
    assert found["findings"][0]["cost"] > 1
    with serving(text()) as url:
        assert here("doctor", "--url", url).returncode == 0


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("draft", "--url", "http://a"), "a drafter and a server at once"),
        (("--method", "ngram", "--url", "http://a"), "a drafter and a server at once"),
        (("--key", "k"), "Give '--url'"),
        (("--url", "nowhere"), "it is not an address"),
    ],
)
def test_options_of_both_are_refused(here, words, message) -> None:
    (here.folder / "draft").mkdir()
    found = here("doctor", *words)
    assert found.returncode == 2
    assert message in " ".join(found.stderr.split())
