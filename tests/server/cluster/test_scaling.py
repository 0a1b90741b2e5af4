"""Replicas of two ranks that Ray adds under load, and removes after it."""

import asyncio
import os
import re
import subprocess
import sys
from collections.abc import Iterator

import httpx2 as httpx
import pytest

from foreword import bundled
from waiting import free_port, wait_for

pytest.importorskip("ray")
pytestmark = pytest.mark.slow
SLOTS = 4
SECONDS = 120
OPTIONS = {"slots": SLOTS, "tensor_parallel": 2, "backend": "pool"}
SERVER = f"""
import sys
from foreword_server.cluster.placing import Scale
from foreword_server.cluster.serve import connect, deploy, end
from foreword_server.replicas.process import Start
from foreword_server.settings import Settings
session = connect("local")
settings = Settings(port=int(sys.argv[1]), drain=1)
scale = Scale(most=2, cpus=1, ranks=2, up_seconds=1, down_seconds=1)
try:
    deploy(Start({str(bundled.target())!r}, {OPTIONS}, settings), scale, seconds=600)
    print("ready", flush=True)
    sys.stdin.read()
finally:
    end(cluster=True, session=session)
"""


@pytest.fixture
def url() -> Iterator[str]:
    """A server with one replica, or two under load."""
    port = str(free_port())
    pushed = {"RAY_SERVE_HANDLE_AUTOSCALING_METRIC_PUSH_INTERVAL_S": "1"}
    streams = dict(stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    command = [sys.executable, "-c", SERVER, port]
    with subprocess.Popen(command, env=os.environ | pushed, **streams) as process:
        assert process.stdout.readline() == b"ready\n"
        yield f"http://127.0.0.1:{port}"
        process.communicate(timeout=SECONDS)


def replicas(url: str) -> int:
    """Return how many replicas have metrics."""
    text = httpx.get(f"{url}/metrics", timeout=SECONDS).text
    return len({*re.findall(r'replica="(\w+)"', text)} - {"router"})


async def load(url: str, clients: int, count: int) -> None:
    """Send requests until so many replicas run; each is answered."""
    body = {"prompt": "Go on.", "max_tokens": 64, "ignore_eos": True}
    scaled = asyncio.Event()

    async def ask() -> None:
        while not scaled.is_set():
            response = await client.post("/v1/completions", json=body)
            assert response.status_code == 200, response.text

    async with httpx.AsyncClient(base_url=url, timeout=SECONDS) as client:
        asked = asyncio.gather(*(ask() for _ in range(clients)))
        look = (wait_for, lambda: replicas(url) == count, f"{count} replicas")
        try:
            await asyncio.to_thread(*look)
        finally:
            scaled.set()
            await asked


def test_replicas_of_two_ranks_follow_the_load(url):
    assert replicas(url) == 1
    asyncio.run(load(url, 2 * SLOTS, 2))
    asyncio.run(load(url, 1, 1))
