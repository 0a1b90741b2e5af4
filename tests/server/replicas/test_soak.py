"""Many requests while replicas are killed and clients leave: every answer is right."""

import asyncio
import itertools
import json
import os
import random
import sys
from collections import Counter
from dataclasses import dataclass, field
from typing import Any

import httpx2 as httpx
import pytest

CLIENTS = 16
KINDS = 24
"""Different requests; each is sent many times."""
PER_KILL = 40
"""Answers between two kills."""
REQUESTS = int(os.environ.get("FOREWORD_SOAK", "320"))
ASK = [{"role": "user", "content": "Count all numbers, each in words."}]


def request(kind: int) -> tuple[str, dict[str, Any]]:
    """Return the path and body of a kind of request."""
    rng = random.Random(kind)
    most = rng.randrange(40, 400)
    common = {
        "seed": kind,
        "temperature": rng.choice([0, 0.7, 1.0]),
        "stream": kind % 3 > 0,
    }
    return rng.choice(
        [
            (
                "/v1/chat/completions",
                {"messages": ASK, "max_tokens": most, "n": 1 + kind % 2, **common},
            ),
            ("/v1/completions", {"prompt": "Once upon", "max_tokens": most, **common}),
            ("/v1/messages", {"messages": ASK, "max_tokens": most, **common}),
            ("/v1/responses", {"input": ASK, "max_output_tokens": most, **common}),
        ]
    )


def text_of(body: bytes) -> str:
    """Return all text in a body, whole or streamed, by choice."""
    if not body.startswith((b"data:", b"event:", b":")):
        return json.dumps(whole(json.loads(body)))
    found: dict[int, str] = {}
    for line in body.decode().splitlines():
        if not line.startswith("data: {"):
            continue
        event = json.loads(line.removeprefix("data: "))
        assert "error" not in event or event["error"] is None, event
        for choice in event.get("choices") or ():
            text = choice.get("text") or choice.get("delta", {}).get("content") or ""
            found[choice["index"]] = found.get(choice["index"], "") + text
        delta = event.get("delta")
        part = delta if isinstance(delta, str) else (delta or {}).get("text", "")
        found[0] = found.get(0, "") + part
    return json.dumps(sorted(found.items()))


def whole(body: dict[str, Any]) -> list[Any]:
    """Return the texts of an answer that was not streamed."""
    if "choices" in body:
        return [one.get("text") or one["message"]["content"] for one in body["choices"]]
    return [
        part.get("text") or [inner["text"] for inner in part.get("content", ())]
        for part in body.get("content") or body["output"]
    ]


@dataclass
class Soak:
    """The clients, and what they saw."""

    router: Any
    expected: dict[int, str] = field(default_factory=dict)
    seen: Counter[str] = field(default_factory=Counter)
    numbers: Any = field(default_factory=itertools.count)
    killing: asyncio.Lock = field(default_factory=asyncio.Lock)

    async def run(self) -> None:
        """Ask for everything once, then again and again with faults."""
        async with httpx.AsyncClient(
            base_url=self.router.http.base_url, timeout=300
        ) as http:
            for kind in range(KINDS):
                self.expected[kind] = text_of(await self.answer(http, kind))
            clients = [self.client(http) for _ in range(CLIENTS)]
            await asyncio.gather(*clients)

    async def answer(self, http: httpx.AsyncClient, kind: int) -> bytes:
        """Return the bytes of an answer."""
        path, body = request(kind)
        response = await http.post(path, json=body)
        assert response.status_code == 200, response.text
        return response.content

    async def client(self, http: httpx.AsyncClient) -> None:
        """Send requests until there have been enough."""
        while (number := next(self.numbers)) < REQUESTS:
            kind = number % KINDS
            if number % 10 == 3:
                await self.leave(http, kind)
            elif number % 10 == 7:
                await self.nonsense(http)
            else:
                self.seen["requests"] += 1
                found = text_of(await self.answer(http, kind))
                self.seen["different"] += found != self.expected[kind]
            if number % PER_KILL == PER_KILL - 1:
                async with self.killing:
                    await asyncio.to_thread(self.kill)

    async def leave(self, http: httpx.AsyncClient, kind: int) -> None:
        """Begin to read an answer, then leave."""
        path, body = request(kind)
        body = {**body, "stream": True}
        async with http.stream("POST", path, json=body) as response:
            async for _ in response.aiter_lines():
                break
        self.seen["left"] += 1

    async def nonsense(self, http: httpx.AsyncClient) -> None:
        """Send a body that no server can read."""
        path = "/v1/chat/completions"
        headers = {"content-type": "application/json"}
        response = await http.post(path, content=b'{"messages": [', headers=headers)
        assert response.status_code == 400
        self.seen["nonsense"] += 1

    def kill(self) -> None:
        """Kill a replica; the other one goes on."""
        name = str(self.seen["kills"] % 2)
        self.router.all_ready()
        self.router.kill(name)
        self.seen["kills"] += 1


@pytest.mark.slow
def test_nothing_is_lost_and_nothing_differs(router: Any) -> None:
    router.all_ready()
    soak = Soak(router)
    asyncio.run(soak.run())
    continued = int(router.metric("foreword:requests_continued_total"))
    sys.stderr.write(f"\n{dict(soak.seen)}, continued {continued}\n")
    assert soak.seen["different"] == 0
    assert soak.seen["kills"] >= REQUESTS // PER_KILL
    assert continued > 0
