"""Requests that end or fail the process which runs them, and replicas that fail."""

import asyncio
import json
import os
from collections.abc import AsyncIterator, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from typing import Any

import pytest
from starlette.types import Message

from foreword_server.errors import ENDS_PROCESS, ApiError
from foreword_server.replicas import pool as module
from foreword_server.replicas.charges import Charge, charge
from foreword_server.replicas.exchange import Exchange
from foreword_server.replicas.frames import MEDIA_TYPE, Frame
from foreword_server.replicas.pool import FAILURES, Answered, Asked, Pool, Replica
from foreword_server.replicas.prefixes import BLOCK

CHAT = "/v1/chat/completions"
PACKAGE = {
    "faulty.py": """
import os, signal

from foreword.extend import Drafter, Method
from foreword.verify.base import Rule


class Deadly(Drafter):
    about = Method("the end of the process")

    def propose(self, batch, nodes):
        os.kill(os.getpid(), signal.SIGKILL)


def broken(*_, **__):
    raise RuntimeError("the device is lost")


BROKEN = Rule(name="broken", verify=broken, lists="one")
""",
    "faulty-1.0.dist-info/METADATA": (
        "Metadata-Version: 2.1\nName: faulty\nVersion: 1.0\n"
    ),
    "faulty-1.0.dist-info/entry_points.txt": (
        "[foreword.methods]\ndeadly = faulty:Deadly\n"
        "[foreword.rules]\nbroken = faulty:BROKEN\n"
    ),
}
"""A package that adds a method which ends its process, and a rule which fails."""
LONG = {
    "messages": [{"role": "user", "content": "Count on, each number in words. " * 40}],
    "max_tokens": 500,
    "temperature": 0.9,
    "seed": 4,
    "ignore_eos": True,
}
"""A request that is longer than a block, so that others go to its replica."""
assert len(LONG["messages"][0]["content"]) > 2 * BLOCK


@pytest.fixture(scope="session")
def package(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """Return the environment of processes that have the package."""
    folder = tmp_path_factory.mktemp("faulty")
    for name, text in PACKAGE.items():
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_text(text)
    return {"PYTHONPATH": f"{folder}:{os.environ.get('PYTHONPATH', '')}"}


@pytest.fixture(scope="module")
def faulty(routing: Any, package: dict[str, str]) -> Iterator[Any]:
    with routing(**package) as router:
        yield router


def text_of(lines: list[str]) -> str:
    """Return the text of a stream without an error."""
    data = [line.removeprefix("data: ") for line in lines if "data: {" in line]
    events = [json.loads(one) for one in data]
    assert not [one for one in events if one.get("error")]
    deltas = [choice["delta"] for one in events for choice in one["choices"]]
    return "".join(one.get("content") or "" for one in deltas)


@pytest.mark.slow
def test_request_that_ends_its_process_ends_two_and_costs_no_other(faulty):
    router = faulty
    router.all_ready()
    whole = router.http.post(CHAT, json=LONG).json()["choices"][0]["message"]["content"]
    accepted = router.metric("vllm:spec_decode_num_accepted_tokens_total")
    assert accepted > 0
    deadly = {**LONG, "speculative": {"method": "deadly", "nodes": 4}}
    with (
        ThreadPoolExecutor(1) as pool,
        router.http.stream("POST", CHAT, json={**LONG, "stream": True}) as stream,
    ):
        lines = stream.iter_lines()
        first = next(lines)
        refused = pool.submit(router.http.post, CHAT, json=deadly)
        text = text_of([first, *lines])
        response = refused.result()
    assert text == whole
    assert response.status_code == 500
    assert response.json()["error"]["code"] == ENDS_PROCESS
    assert "retry-after" not in response.headers
    assert len(router.events("replica ended")) == 2
    again = router.http.post(CHAT, json=LONG).json()
    assert again["choices"][0]["message"]["content"] == whole


def test_replica_ends_after_rounds_in_a_row_that_fail(faulty):
    router = faulty
    router.all_ready()
    before = len(router.events("replica ended"))
    body = {**LONG, "max_tokens": 4, "speculative": {"rule": "broken"}}
    for _ in range(5):
        failed = router.http.post(CHAT, json=body)
        assert failed.status_code == 500
        assert "the device is lost" in failed.json()["error"]["message"]
    router.wait(lambda: len(router.events("replica ended")) == before + 1)
    assert "5 rounds in a row failed" in router.text
    router.all_ready()
    assert router.http.post(CHAT, json={**LONG, "max_tokens": 4}).status_code == 200


# ---- whom the end of a process is charged to


def test_suspect_in_quarantine_is_charged_alone():
    poison, bystander, other = Charge(), Charge(), Charge()
    charge({poison, bystander})
    assert poison.quarantined
    assert bystander.quarantined
    assert not poison.guilty
    assert not bystander.guilty
    bystander.clear()
    charge({poison, bystander, other})
    assert poison.guilty
    assert (bystander.deaths, other.deaths) == (1, 0)


def test_suspects_that_left_quarantine_are_told_apart_by_a_third_end():
    """Each got past the point where it stood, then both were in another process."""
    first, second, other = Charge(), Charge(), Charge()
    charge({first, second})
    first.clear()
    second.clear()
    charge({first, second, other})
    assert not any(one.guilty for one in (first, second, other))
    first.clear()
    assert first.quarantined
    bystander = Charge()
    charge({first, bystander})
    assert first.guilty
    assert not bystander.deaths


# ---- replicas that fail


class Engine:
    """A replica that gives every request the same answer at once."""

    def __init__(self, status: int) -> None:
        self.status = status
        self.asked = 0

    @asynccontextmanager
    async def ask(self, asked: Asked) -> AsyncIterator[Answered]:
        self.asked += 1
        kind = (b"content-type", MEDIA_TYPE.encode())
        headers = [kind] if self.status == 200 else []
        yield Answered(self.status, headers, self._pieces())

    async def _pieces(self) -> AsyncIterator[bytes]:
        yield Frame("whole", b"{}").encoded


class Clock:
    """A time that passes when a test says so."""

    now = 0.0


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(module, "monotonic", lambda: clock.now)
    return clock


def statuses(pool: Pool, count: int) -> list[int]:
    """Return the statuses of some requests, one after the other."""
    return asyncio.run(_statuses(pool, count))


async def _statuses(pool: Pool, count: int) -> list[int]:
    found: list[int] = []

    async def send(message: Message) -> None:
        if message["type"] == "http.response.start":
            found.append(message["status"])

    for _ in range(count):
        await Exchange(pool, Asked("POST", CHAT, []), "id", "", send).run()
    return found


def test_replica_that_fails_fast_gets_few_requests(clock):
    broken, good = Engine(500), Engine(200)
    first = Replica("0", broken.ask, ready=True)
    # the other one is always busier, so each request would go to the one that fails
    pool = Pool([first, Replica("1", good.ask, ready=True, running=3)])
    found = statuses(pool, 50)
    assert (broken.asked, found.count(500)) == (FAILURES, FAILURES)
    assert first.state == "failing"
    for pause in (1, 2, 4):
        clock.now += pause
        assert statuses(pool, 20).count(500) == 1
    broken.status = 200
    clock.now += 8
    statuses(pool, 20)
    assert first.state == "ready"
    assert broken.asked == FAILURES + 3 + 20


def test_last_replica_is_asked_however_often_it_fails(clock):
    broken = Engine(500)
    pool = Pool([Replica("0", broken.ask, ready=True), Replica("1", Engine(200).ask)])
    assert statuses(pool, 20) == [500] * 20


def test_stopped_replicas_are_not_waited_for():
    pool = Pool([Replica("0", Engine(200).ask)])
    pool.draining = True
    with pytest.raises(ApiError, match="the server stops"):
        statuses(pool, 1)


@pytest.mark.slow
def test_server_ends_after_rounds_in_a_row_that_fail(package, routing):
    with routing(replicas=None, **package) as server:
        body = {**LONG, "max_tokens": 4, "speculative": {"rule": "broken"}}
        for _ in range(5):
            assert server.http.post(CHAT, json=body).status_code == 500
        assert server.process.wait(60) == 1
        assert "cannot run requests any more: 5 rounds in a row failed" in server.text
