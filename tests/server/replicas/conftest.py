"""A real router with two replicas of the bundled model, each a process."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any

import httpx2 as httpx
import pytest
from prometheus_client.parser import text_string_to_metric_families

KEYS = "FOREWORD_API_KEYS"


class Routed:
    """A router that runs, its log, and a client for it."""

    def __init__(self, process: subprocess.Popen[bytes], log: Path) -> None:
        self.process = process
        self._log = log
        address = self.wait(lambda: self._address)
        self.http = httpx.Client(base_url=address, timeout=120)

    def wait(self, found: Callable[[], Any]) -> Any:
        """Return what is found, as soon as it is."""
        while not (value := found()):
            assert self.process.poll() is None, self._log.read_text()
        return value

    @property
    def _address(self) -> str:
        for line in self._log.read_text().splitlines():
            if " at http://" in line and not line.startswith("{"):
                return line.partition(" at ")[2].partition("/v1")[0]
        return ""

    def events(self, name: str) -> list[dict[str, Any]]:
        """Return the lines of the log about an event."""
        lines = self._log.read_text().splitlines()
        read = [json.loads(line) for line in lines if line.startswith("{")]
        return [one for one in read if one["event"] == name]

    def metric(self, name: str, **labels: str) -> float:
        """Return the sum of a metric over the replicas with these labels."""
        total = 0.0
        for family in text_string_to_metric_families(self.http.get("/metrics").text):
            for one in family.samples:
                if one.name == name and labels.items() <= one.labels.items():
                    total += one.value
        return total

    def pid(self, replica: str) -> int:
        """Return the number of a replica's newest process."""
        own = [
            one["pid"]
            for one in self.events("replica ready")
            if one["replica"] == replica
        ]
        return own[-1]

    @property
    def busy(self) -> str:
        """Name of the replica that has a request."""
        return self.wait(
            lambda: next(
                (
                    name
                    for name in ("0", "1")
                    if self.metric("vllm:num_requests_running", replica=name)
                ),
                "",
            )
        )

    def kill(self, replica: str, number: int = signal.SIGKILL) -> None:
        """Kill a replica, or send it another signal."""
        os.kill(self.pid(replica), number)

    def all_ready(self) -> None:
        """Wait until both replicas take requests."""
        ready = {"0": "ready", "1": "ready"}
        self.wait(lambda: self.http.get("/health").json().get("replicas") == ready)


Starting = Callable[..., AbstractContextManager[Routed]]


@pytest.fixture(scope="session")
def routing(tmp_path_factory: pytest.TempPathFactory) -> Starting:
    """Return a function that starts a router with more options."""

    @contextmanager
    def start(
        *options: str, replicas: str | None = "2", **environment: str
    ) -> Iterator[Routed]:
        log = tmp_path_factory.mktemp("router") / "log"
        command = ("-m", "foreword", "serve", "--port", "0", "--log-json")
        usual = ["--nodes", "4", "--device", "cpu"]
        if replicas is not None:
            usual += ["--replicas", replicas]
        with (
            log.open("wb") as stderr,
            subprocess.Popen(
                [sys.executable, *command, *usual, *options],
                stderr=stderr,
                env={**os.environ, **environment},
            ) as process,
        ):
            try:
                router = Routed(process, log)
                with router.http:
                    yield router
            finally:
                process.terminate()

    return start


@pytest.fixture(scope="session")
def router(routing: Starting) -> Iterator[Routed]:
    """One router for many tests; the replicas that they kill come back."""
    with routing() as router:
        yield router
