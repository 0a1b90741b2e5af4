"""The load generator against a real server, and the arithmetic of its figures."""

import asyncio
from collections.abc import Iterator
from dataclasses import replace

import pytest

import starter
from foreword import LLM
from foreword.api.async_llm import AsyncLLM
from foreword.types import SamplingParams
from foreword_lab.bench.records import BenchRequest
from foreword_lab.bench.serving.load import Answer, Load, longest, send
from foreword_lab.bench.serving.report import IN_PROCESS, rows
from foreword_lab.bench.serving.servers import OURS, PLAIN, TRANSFORMERS
from foreword_lab.bench.serving.targets import HttpTarget, InProcess
from serving import Running, running

TOKENS = 16


@pytest.fixture(scope="module")
def llm() -> Iterator[LLM]:
    with LLM(starter.target(), draft=starter.draft(), slots=4, nodes=4) as llm:
        yield llm


@pytest.fixture(scope="module")
def server(llm: LLM) -> Iterator[Running]:
    with running(llm) as server:
        yield server


@pytest.fixture
def target(server: Running) -> HttpTarget:
    host, _, port = server.url.removeprefix("http://").partition(":")
    return HttpTarget((host, int(port)))


def requests(llm: LLM, heat: float = 0.0) -> list[BenchRequest]:
    texts = ("Count from one to twenty:", "The capital of France is", "def add(a, b):")
    prompts = [tuple(llm.tokenizer(text)["input_ids"]) for text in texts]
    return [
        BenchRequest(str(seed), prompt, heat, seed, TOKENS)
        for seed, prompt in enumerate(prompts)
    ]


@pytest.mark.parametrize("heat", [0.0, 1.0])
def test_answers_are_those_of_the_library(llm, target, heat):
    sent = requests(llm, heat)
    common = dict(temperature=heat, max_tokens=TOKENS)
    params = [SamplingParams(**common, seed=one.seed) for one in sent]
    expected = llm.generate([list(one.prompt) for one in sent], params)
    for concurrency in (1, 3):
        load = asyncio.run(send(target.ask, sent, concurrency, ""))
        assert load.failures == ()
        assert load.texts == [one.text for one in expected]
        assert [one.tokens for one in load.answers] == [
            len(one.tokens) for one in expected
        ]
        assert sum(one.accepted for one in load.answers) > 0
        assert all(one.started < one.first <= one.last for one in load.answers)
        tokens = sum(one.tokens for one in load.answers)
        assert load.tokens_per_second == tokens / load.seconds


def test_text_prompts_get_the_same_answers(llm, target):
    """Their tokens are counted by events where no usage is reported."""
    sent = requests(llm)
    texts = asyncio.run(send(replace(target, tokenizer=llm.tokenizer).ask, sent, 1, ""))
    ids = asyncio.run(send(target.ask, sent, 1, ""))
    assert texts.texts == ids.texts
    for without, reported in zip(texts.answers, ids.answers, strict=True):
        assert without.tokens <= reported.tokens
        assert (without.tokens > 0) == (without.text != "")


def test_in_process_engine_gives_the_same_answers(llm, target):
    async def both() -> tuple[Load, Load]:
        async with AsyncLLM(llm) as engine:
            return await send(InProcess(engine).ask, sent, 1, ""), await send(
                target.ask, sent, 1, ""
            )

    sent = requests(llm)
    bare, http = asyncio.run(both())
    assert bare.texts == http.texts
    assert [one.tokens for one in bare.answers] == [one.tokens for one in http.answers]


def test_refused_request_is_counted_and_others_go_on(llm, target):
    sent = requests(llm)
    sent[1] = BenchRequest("too cold", sent[1].prompt, -1.0, 0, TOKENS)
    load = asyncio.run(send(target.ask, sent, 2, ""))
    assert [one is None for one in load.answers] == [False, True, False]
    assert len(load.failures) == 1
    assert "status 400" in load.failures[0]


def test_missing_server_fails_every_request(llm):
    load = asyncio.run(send(HttpTarget(("127.0.0.1", 1)).ask, requests(llm), 2, ""))
    assert load.answers == (None, None, None)
    assert len(load.failures) == 3
    assert load.tokens_per_second == 0


def test_concurrent_requests_are_limited():
    at_once: list[int] = []
    running_now = 0

    async def ask(request: BenchRequest, tenant: str) -> Answer:
        nonlocal running_now
        running_now += 1
        at_once.append(running_now)
        await asyncio.sleep(0)
        running_now -= 1
        return answer(0.0, 1.0, 2.0, 3, request.name)

    sent = [BenchRequest(str(number), (1,), 0.0, number, 1) for number in range(10)]
    load = asyncio.run(send(ask, sent, 4, ""))
    assert max(at_once) == 4
    assert load.texts == [one.name for one in sent]


def answer(
    started: float, first: float, last: float, tokens: int, text: str = "a"
) -> Answer:
    return Answer(started=started, first=first, last=last, tokens=tokens, text=text)


def test_times_of_an_answer():
    assert answer(1.0, 1.5, 3.5, 5).first_token == 0.5
    assert answer(1.0, 1.5, 3.5, 5).per_token == 0.5
    assert answer(1.0, 1.5, 1.5, 1).per_token is None


def test_longest_gap_is_between_neighbours():
    assert longest([1.0, 1.5, 4.0, 4.25]) == 2.5
    assert longest([1.0]) == longest([]) == 0.0


def test_rows_compare_speeds_and_greedy_texts():
    def load(seconds: float, *texts: str | None) -> Load:
        failed = tuple("lost" for text in texts if text is None)
        return Load(
            seconds,
            tuple(
                None if one is None else answer(0.0, 0.5, 1.5, 3, one) for one in texts
            ),
            failed,
        )

    found = rows(
        {
            (0.0, OURS, 1): [load(1.0, "a", "b")],
            (0.0, PLAIN, 1): [load(2.0, "a", "b")],
            (0.0, TRANSFORMERS, 1): [load(4.0, "a", "x")],
            (0.0, IN_PROCESS, 1): [load(0.5, "a", "b")],
            (0.0, OURS, 4): [load(0.5, "a", "x")],
            (0.0, PLAIN, 4): [load(1.0, "a", None)],
            (1.0, PLAIN, 1): [load(1.0, "a", "b")],
            (1.0, TRANSFORMERS, 1): [load(1.0, "c", "d")],
        }
    )
    by_key = {(row.name, row.concurrency): row for row in found if row.temperature == 0}
    assert [row.over_plain for row in found] == [2.0, 1.0, 0.5, 4.0, 4.0, 1.0, 1.0, 1.0]
    assert [row.differing for row in found if row.temperature == 1] == [0, None]
    assert by_key[OURS, 1].over_in_process == 0.5
    assert by_key[PLAIN, 1].over_in_process is None
    assert {key: row.differing for key, row in by_key.items()} == {
        (OURS, 1): 0,
        (PLAIN, 1): 0,
        (TRANSFORMERS, 1): 1,
        (IN_PROCESS, 1): 0,
        (OURS, 4): 1,
        (PLAIN, 4): 0,
    }
    assert by_key[PLAIN, 4].failures == ("lost",)
    assert by_key[OURS, 1].first_token == (0.5, 0.5)
    assert by_key[OURS, 1].per_token == (0.5, 0.5)
