"""Many users at once: nothing is lost, no token differs. `make soak` sends 10,000."""

import asyncio
import gc
import json
import os
import random
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx2 as httpx
import pytest

from asking import tool
from foreword import LLM
from foreword.draft.lookup.ngram import NgramDrafter
from foreword.types import Batch, Draft
from serving import Running, running

CHAT = "/v1/chat/completions"
REQUESTS = int(os.environ.get("FOREWORD_SOAK", "84"))
CONCURRENCY, DIFFERENT = 16, 12
LOOKUPS = ("ngram", "suffix", "recycle", "lookahead")
METHODS = ("none", "lm", *LOOKUPS, "cascade(suffix, lm)")
TALES = (
    "Summarise: The river rose in the night and the miller moved his grain upstairs.",
    "Define the word gasolene.",
    "Rewrite politely: Give me the book.",
    "List three fruits.",
)


def form(schema: dict[str, Any]) -> dict[str, Any]:
    return {"type": "json_schema", "json_schema": {"name": "x", "schema": schema}}


FORMS: tuple[dict[str, Any], ...] = (
    {},
    {"temperature": 0},
    {"temperature": 0.7, "top_p": 0.9},
    {"guided_regex": "[a-z ]{3,20}"},
    {"response_format": form({"enum": ["yes", "no"]})},
    {"presence_penalty": 0.5, "stop": ["the"]},
)
KINDS = ("whole", "whole", "stream", "stream", "slow", "leaves", "bad", "hostile")
BAD = (
    {"messages": []},
    {"messages": 3},
    {"temperature": -1},
    {"guided_regex": "("},
    {"model": "another"},
)
HOSTILE: tuple[tuple[dict[str, Any], int], ...] = (
    ({"messages": [0] * 100_000}, 400),
    ({"messages": [{}] * 300_000}, 413),
    ({"messages": [{"role": "user", "content": "lorem ipsum " * 100_000}]}, 400),
    ({"bad_words": ["word"] * 20_000}, 400),
    ({"stop": ["word"] * 20_000}, 400),
    ({"stop_token_ids": [5] * 100_000}, 400),
    ({"logit_bias": {str(token): 1 for token in range(100_000)}}, 400),
    ({"tools": [tool("f", parameters={})] * 3000}, 400),
    ({"speculative": {"method": "cascade(" * 900 + "ngram" + ")" * 900}}, 400),
    ({"speculative": {"method": f"cascade({', '.join(['ngram'] * 5000)})"}}, 400),
    ({"speculative": {"budget": "acceptance:/etc"}}, 400),
    ({"guided_choice": [f"{one} of {one * 7919}" for one in range(20_000)]}, 400),
    ({"response_format": form({"enum": list(range(50_000))})}, 400),
)
"""Requests that would stop other clients if read as usual, and their status."""


class Faulty(NgramDrafter):
    """A drafter that raises now and then."""

    def __init__(self) -> None:
        super().__init__()
        self.calls = 0

    def propose(self, batch: Batch, nodes: list[int]) -> Draft:
        self.calls += 1
        if self.calls % 7 == 0:
            raise RuntimeError("made to fail")
        return super().propose(batch, nodes)


def ask(number: int) -> dict[str, Any]:
    """Request of this number: each pair of a tale and a form is different."""
    kind = number % DIFFERENT
    tale, form = TALES[kind % len(TALES)], FORMS[kind % len(FORMS)]
    messages = [{"role": "user", "content": tale}]
    length = 8 + 3 * (kind % 8)
    return {"messages": messages, "max_tokens": length, "seed": kind, **form}


def memory() -> int:
    """Bytes of this process that are in memory."""
    gc.collect()
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE")


@pytest.fixture(scope="module")
def soaked() -> Iterator[LLM]:
    with LLM(slots=8, cache_tokens=8 * 1024, nodes=4) as llm:
        yield llm


def texts(server: Running) -> dict[int, str]:
    """The text of each request, decoded plainly and alone."""
    found = {}
    for kind in range(DIFFERENT):
        answer = server.post(CHAT, **ask(kind), speculative={"method": "none"})
        found[kind] = answer["choices"][0]["message"]["content"]
    return found


async def user(
    client: httpx.AsyncClient, kind: str, number: int, expected: dict[int, str]
) -> str:
    """Send one request as a kind of user; return the kind, or "full" if it was."""
    body = ask(number) | {"speculative": {"method": METHODS[number % len(METHODS)]}}
    if kind == "bad":
        wrong = BAD[number % len(BAD)]
        response = await client.post(CHAT, json=ask(number) | wrong)
        assert response.status_code in (400, 404, 429)
        return kind if response.status_code != 429 else "full"
    if kind == "hostile":
        wrong, status = HOSTILE[number % len(HOSTILE)]
        response = await client.post(CHAT, json=ask(number) | wrong)
        assert response.status_code in (status, 429), response.text
        return kind if response.status_code != 429 else "full"
    if kind == "whole":
        response = await client.post(CHAT, json=body)
        if response.status_code == 429:
            return "full"
        text = response.json()["choices"][0]["message"]["content"]
        assert text == expected[number % DIFFERENT], (number, body)
        return kind
    text = ""
    body["stream"] = True
    async with client.stream("POST", CHAT, json=body) as stream:
        if stream.status_code == 429:
            return "full"
        async for line in stream.aiter_lines():
            if kind == "slow":
                await asyncio.sleep(0)
            if line.startswith("data: {"):
                chunk = json.loads(line.removeprefix("data: "))
                deltas = [choice["delta"] for choice in chunk["choices"]]
                text += "".join(delta.get("content") or "" for delta in deltas)
                if kind == "leaves":
                    return kind
    assert text == expected[number % DIFFERENT], (number, body)
    return kind


async def crowd(server: Running, count: int, expected: dict[int, str]) -> Counter[str]:
    """Send requests, `CONCURRENCY` at a time, until served; return the outcomes."""
    numbers, found = iter(range(count)), Counter[str]()
    limits = httpx.Limits(max_connections=CONCURRENCY)

    async def worker(rng: random.Random) -> None:
        for number in numbers:
            kind, became = rng.choice(KINDS), "full"
            while became == "full":
                became = await user(client, kind, number, expected)
                found[became] += 1

    options = dict(base_url=server.url, timeout=300, limits=limits)
    async with httpx.AsyncClient(**options) as client:
        workers = [worker(random.Random(seed)) for seed in range(CONCURRENCY)]
        await asyncio.gather(*workers)
    return found


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:the drafter failed")
def test_a_crowd_loses_nothing(soaked: LLM) -> None:
    faulty = Faulty()
    soaked.session.speculators._drafters.get("ngram", lambda: faulty)
    with running(soaked, queue=CONCURRENCY - 2) as server:
        expected = texts(server)
        asyncio.run(crowd(server, REQUESTS // 4, expected))
        before = memory()
        found = asyncio.run(crowd(server, REQUESTS // 4, expected))
    # started again over the same model
    with running(soaked, queue=CONCURRENCY - 2) as server:
        found += asyncio.run(crowd(server, REQUESTS // 2, expected))
        after = memory()
        while server.service.limits.active or not soaked.engine.idle:
            server.http.get("/health")
        drafted = [
            float(line.rpartition(" ")[2])
            for line in server.http.get("/metrics").text.splitlines()
            if line.startswith("vllm:spec_decode_num_accepted_tokens_total")
        ]
    assert found.total() - found["full"] == REQUESTS // 4 + REQUESTS // 2
    assert all(found[kind] for kind in KINDS)
    assert sum(drafted) > 0
    assert faulty.calls >= 7
    assert after < 1.05 * before + 32 * 2**20, "memory grew"
    assert soaked.engine.load.kv_used == 0
