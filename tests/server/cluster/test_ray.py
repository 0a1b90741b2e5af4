"""A server on a cluster of Ray: three raylets on this machine."""

import asyncio
import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx2 as httpx
import psutil
import pytest

from waiting import free_port, wait_for

pytest.importorskip("ray")
pytestmark = [
    pytest.mark.slow,
    # Ray and what it imports, not ours
    pytest.mark.filterwarnings("ignore"),
]
STREAMS = 50
ENVIRONMENT = {"RAY_USAGE_STATS_ENABLED": "0", "OTEL_SERVICE_NAME": "ours"}
COUNT = "Count from {} on, in words."


@pytest.fixture(scope="module")
def cluster() -> Iterator[Any]:
    """A head without CPUs, as on Kubernetes, and two nodes of one CPU."""
    from ray.cluster_utils import Cluster

    kept = dict(num_cpus=1, object_store_memory=100_000_000)
    head = {**kept, "num_cpus": 0, "include_dashboard": False}
    cluster = Cluster(initialize_head=True, head_node_args=head)
    cluster.add_node(**kept)
    cluster.second = cluster.add_node(**kept)
    yield cluster
    cluster.shutdown()


class OnRay:
    """The command that serves on a cluster, and its address."""

    def __init__(self, cluster: Any, log: Path) -> None:
        self.port = free_port()
        self.url = f"http://127.0.0.1:{self.port}"
        self._cluster = cluster
        self._log = log

    def start(self, *options: str) -> subprocess.Popen[bytes]:
        """Start the command; return it once it serves, or has ended."""
        command = (sys.executable, "-m", "foreword", "serve", "--nodes", "4")
        where = ("--ray", self._cluster.address, "--port", str(self.port))
        before = self._text.count(" on Ray")
        with self._log.open("ab") as stderr:
            process = subprocess.Popen(
                [*command, *where, *options],
                stderr=stderr,
                env=os.environ | ENVIRONMENT,
            )
        wait_for(
            lambda: self._text.count(" on Ray") > before or process.poll() is not None,
            "the server",
            log=self._log,
        )
        return process

    @property
    def _text(self) -> str:
        return self._log.read_text() if self._log.exists() else ""


@pytest.fixture(scope="module")
def served(cluster: Any, tmp_path_factory: pytest.TempPathFactory) -> Iterator[OnRay]:
    """A server with two replicas, one a node."""
    server = OnRay(cluster, tmp_path_factory.mktemp("ray") / "log")
    process = server.start("--replicas", "2", "--drain", "300")
    assert process.poll() is None, server._text
    yield server
    process.send_signal(signal.SIGTERM)
    assert process.wait(60) == 0


async def stream(client: httpx.AsyncClient, seed: int, began: list[int]) -> str:
    """Return the text of one answer."""
    body = {
        "messages": [{"role": "user", "content": COUNT.format(seed)}],
        "max_tokens": 120,
        "temperature": 0.9,
        "seed": seed,
        "ignore_eos": True,
        "stream": True,
    }
    text, rest = "", b""
    path = "/v1/chat/completions"
    async with client.stream("POST", path, json=body) as response:
        assert response.status_code == 200, await response.aread()
        async for content in response.aiter_bytes():
            # aiter_lines() would cut at U+2028 and others, which a text may have
            *lines, rest = (rest + content).split(b"\n")
            for line in lines:
                if line.startswith(b"data: {"):
                    event = json.loads(line.removeprefix(b"data: "))
                    assert "error" not in event, event
                    (choice,) = event["choices"]
                    began.append(seed)
                    text += choice["delta"].get("content") or ""
    return text


async def streams(url: str, then: Any = None) -> list[str]:
    """Return the texts of many answers at once; call `then` when all have begun."""
    began: list[int] = []
    limits = httpx.Limits(max_connections=None)
    async with httpx.AsyncClient(base_url=url, timeout=300, limits=limits) as client:
        work = [
            asyncio.create_task(stream(client, seed, began)) for seed in range(STREAMS)
        ]
        if then is not None:
            while len({*began}) < STREAMS // 4:
                await asyncio.wait(work, timeout=0.05)
            await asyncio.to_thread(then)
        return await asyncio.gather(*work)


def metric(url: str, name: str) -> float:
    lines = httpx.get(f"{url}/metrics").text.splitlines()
    return sum(float(one.rpartition(" ")[2]) for one in lines if one.startswith(name))


def counted(node: Any) -> bool:
    """Whether the metrics of a node have what its replica counted."""
    url = f"http://{node.node_ip_address}:{node.metrics_export_port}/metrics"
    return "ray_foreword_accepted_draft_tokens_total{" in httpx.get(url).text


def environments() -> list[str | None]:
    """Return what each process of the application has of the command's environment."""
    return [
        process.environ().get("OTEL_SERVICE_NAME")
        for process in psutil.Process().children(recursive=True)
        if "ray::ServeReplica:foreword" in str(process.as_dict(["cmdline"]))
    ]


def test_streams_are_drafted_and_go_over_both_replicas(served, cluster):
    texts = asyncio.run(streams(served.url))
    assert len({*texts}) > STREAMS // 2
    assert metric(served.url, "vllm:spec_decode_num_accepted_tokens_total") > 0
    wait_for(lambda: all(map(counted, cluster.list_all_nodes()[1:])), "Ray's counts")
    assert environments() == ["ours"] * 3  # two replicas and an ingress
    text = httpx.get(f"{served.url}/metrics").text
    assert len({*re.findall(r'replica="(\w+)"', text)} - {"router"}) == 2


def test_client_that_leaves_frees_its_place(served):
    body = {"prompt": "Go on.", "max_tokens": 900, "ignore_eos": True, "stream": True}
    with httpx.stream("POST", f"{served.url}/v1/completions", json=body) as answer:
        lines = answer.iter_lines()
        next(lines)
    wait_for(lambda: not metric(served.url, "vllm:num_requests_running"), "its end")
    refused = httpx.post(f"{served.url}/v1/completions", json={**body, "n": 257})
    assert refused.status_code == 400


def test_new_version_takes_over_while_streams_run(served):
    expected = asyncio.run(streams(served.url))
    ended: list[int] = []

    def update() -> None:
        options = ("--replicas", "2", "--slots", "16", "--drain", "300", "--detach")
        ended.append(served.start(*options).wait(120))

    assert asyncio.run(streams(served.url, update)) == expected
    assert ended == [0]


def test_streams_survive_the_loss_of_a_node(served, cluster):
    expected = asyncio.run(streams(served.url))

    def lose() -> None:
        cluster.remove_node(cluster.second, allow_graceful=False)

    before = metric(served.url, "foreword:requests_continued_total")
    assert asyncio.run(streams(served.url, lose)) == expected
    assert metric(served.url, "foreword:requests_continued_total") > before


def test_what_cannot_be_served_is_said(served, cluster, tmp_path):
    server = OnRay(cluster, tmp_path / "log")
    elsewhere, server.port = str(server.port), served.port
    for options, words in (
        (
            ("--replicas", "2", "--replica-timeout", "5"),
            "of 2 replicas run. Each takes 1 CPUs and 0 GPUs",
        ),
        (("--replica-cpus", "64"), "cannot place a replica: it takes 64 CPUs"),
        (("--replicas", "3-1"), "nor a range"),
        (("--files", str(tmp_path)), "cannot use '--files' with '--ray'"),
        (("/no/such/model",), "/no/such/model"),
        (("--port", elsewhere), f"already, at 127.0.0.1:{served.port}"),
        (("--ray", "127.0.0.1:9"), "cannot join the Ray cluster '127.0.0.1:9'"),
    ):
        process = server.start(*options)
        assert process.wait(120) in (1, 2)
        assert words in " ".join(server._text.split())
