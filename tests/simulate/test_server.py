"""Costs are read from a real server of ours, and add up to the time of its rounds."""

import json
from collections.abc import Iterator

import pytest

import starter
from foreword import LLM
from foreword.errors import InvalidRequest
from foreword_lab.doctor.server.metrics import scrape
from foreword_lab.simulate.costs import ReplicaCosts
from foreword_lab.simulate.load import Lengths, waiting_clients
from foreword_lab.simulate.run import simulate
from foreword_lab.simulate.server import Counted, costs_of, forward_table
from foreword_server.settings import hashed
from serving import Running, running

ANSWERS, TOKENS = 6, 24
NODES = 4


@pytest.fixture(scope="module")
def llm() -> Iterator[LLM]:
    models = (str(starter.target()), str(starter.draft()))
    with LLM(models[0], draft=models[1], nodes=NODES, slots=3, chunk=48) as llm:
        yield llm


@pytest.fixture
def server(llm: LLM) -> Iterator[Running]:
    with running(llm, queue=5) as server:
        yield server


def write(server: Running, count: int = ANSWERS, **more: object) -> None:
    for number in range(count):
        server.post(
            "/v1/completions",
            prompt=f"{number} rivers carry water from the mountains to the sea. ",
            max_tokens=TOKENS,
            ignore_eos=True,
            temperature=0,
            **more,
        )


def test_costs_of_our_server_are_what_its_rounds_took(server):
    with pytest.raises(InvalidRequest, match="it counts no answer yet"):
        costs_of(server.url)
    write(server)
    costs = costs_of(server.url)
    assert (costs.slots, costs.chunk, costs.queue) == (3, 48, 5)
    assert 0 < costs.draft_tokens <= NODES
    assert isinstance(costs.tokens, tuple)
    assert sum(costs.tokens) == pytest.approx(1)
    # some draft tokens were accepted
    assert 1.0 < costs.mean_tokens() <= NODES + 1
    assert costs.draft + costs.draft_token > 0
    assert costs.request > 0
    times = [costs.forward[rows] for rows in sorted(costs.forward)]
    assert times == sorted(times)
    (_, metrics) = scrape(server.url)
    written = metrics.total("vllm:inter_token_latency_seconds_count") + ANSWERS
    tokens = metrics.total("vllm:generation_tokens_total")
    assert tokens == ANSWERS * TOKENS
    # the last round of an answer may accept more than the answer has room for
    assert tokens / written <= costs.mean_tokens() < 1.2 * tokens / written
    prompts = metrics.total("vllm:prompt_tokens_total")
    mean_round = metrics.total("vllm:request_inference_time_seconds_sum") / written
    context = costs.context
    expected = costs.round_seconds(1, 0, context)
    # without the prompts, which are few rows of a forward here
    assert 0.3 * mean_round < expected < 1.01 * mean_round
    assert prompts > 0


def test_table_rises_and_takes_what_was_counted():
    counted = Counted(
        batch=1.0,
        context=0.0,
        drafted=0.0,
        shares=(1.0,),
        prompts=3.0,
        draft=0.0,
        score=0.5,
        other=0.0,
        delivery=0.0,
    )
    # the forward of four rows says that two cannot take 400 ms; a row, and three prompt
    # tokens of 125 / 3 ms, are counted with 500
    found = forward_table({"1": 125.0, "2": 400.0, "4": 250.0}, counted)
    assert found == {1: 0.25, 2: 0.5, 4: 0.5}


def test_simulated_rounds_are_as_many_as_the_servers(server):
    write(server)
    (_, metrics) = scrape(server.url)
    counted = metrics.total("vllm:iteration_tokens_total_count")
    prompt = int(metrics.total("vllm:prompt_tokens_total")) // ANSWERS
    costs = costs_of(server.url)
    lengths = (Lengths(prompt, prompt), Lengths(TOKENS, TOKENS))
    load = waiting_clients(1, *lengths, ANSWERS)
    (row,) = simulate(costs, load).rows
    assert row.rounds == pytest.approx(counted, rel=0.3)
    assert row.tokens == ANSWERS * TOKENS


def test_server_without_drafts_writes_a_token_a_round(server):
    write(server, 2, speculative={"method": "none"})
    costs = costs_of(server.url)
    assert costs.mean_tokens() == 1
    assert (costs.draft_tokens, costs.draft, costs.draft_token) == (0, 0, 0)
    assert costs.prompt_token == 0


def test_command_reads_a_server_and_keeps_its_costs(here, server, tmp_path):
    write(server, 2)
    done = here(
        *("simulate", "--from-server", server.url, "--save", "costs.json"),
        *("--clients", "4", "--requests", "12", "--replicas", "1,2", "--json"),
    )
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert [row["answers"] for row in found["rows"]] == [12, 12]
    saved = ReplicaCosts.read(tmp_path / "costs.json")
    assert saved.as_json() == found["costs"]


def test_key_is_sent(llm):
    with running(llm, keys=hashed(["secret"])) as server:
        server.http.headers["authorization"] = "Bearer secret"
        write(server, 1)
        with pytest.raises(InvalidRequest, match="Give '--key'"):
            costs_of(server.url)
        assert costs_of(server.url, "secret").forward
