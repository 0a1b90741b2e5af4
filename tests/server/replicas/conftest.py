"""A real router with two replicas of the bundled model, and a client without a key."""

import json
import os
import re
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from itertools import product
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import httpx2 as httpx
import pytest
from prometheus_client.parser import text_string_to_metric_families

from foreword.native.cpu import cores
from waiting import stop, wait_for

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
        return wait_for(found, "the router", self.process, self._log)

    @property
    def text(self) -> str:
        """All that it wrote."""
        return self._log.read_text()

    @property
    def _address(self) -> str:
        for line in self.text.splitlines():
            if " at http://" in line and not line.startswith("{"):
                return line.partition(" at ")[2].partition("/v1")[0]
        return ""

    def events(self, name: str) -> list[dict[str, Any]]:
        """Return the lines of the log about an event."""
        lines = self.text.splitlines()
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
        events = self.events("replica ready")
        return [one["pid"] for one in events if one["replica"] == replica][-1]

    @property
    def busy(self) -> str:
        """Name of the replica that has a request."""

        def found() -> str:
            for name in ("0", "1"):
                if self.metric("vllm:num_requests_running", replica=name):
                    return name
            return ""

        return self.wait(found)

    def kill(self, replica: str, number: int = signal.SIGKILL) -> None:
        """Kill a replica, or send it another signal."""
        os.kill(self.pid(replica), number)

    def all_ready(self) -> None:
        """Wait until both replicas take requests, and have none."""
        ready = {"0": "ready", "1": "ready"}
        self.wait(lambda: self.http.get("/health").json().get("replicas") == ready)
        self.wait(lambda: not self.metric("vllm:num_requests_running"))


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
            if cores() < int(replicas):
                pytest.skip("a replica needs a core")
            usual += ["--replicas", replicas]
        words = [sys.executable, *command, *usual, *options]
        variables = {**os.environ, **environment}
        with (
            log.open("wb") as stderr,
            subprocess.Popen(words, stderr=stderr, env=variables) as process,
        ):
            try:
                router = Routed(process, log)
                with router.http:
                    yield router
            finally:
                stop(process, log)

    return start


@pytest.fixture(scope="session")
def router(routing: Starting) -> Iterator[Routed]:
    """One router for many tests; the replicas that they kill come back."""
    with routing() as router:
        yield router


OPEN = ("/", "/page/main.js", "/health", "/ready", "/version")
"""What is answered without a key."""
CLOSED = {"/v1/chat/completions": "POST", "/v1/models": "GET", "/metrics": "GET"}
DETOURS = (
    "{open}/..{closed}",
    "{open}/../..{closed}",
    "{open}/./{closed}",
    "{open}/%2e%2e{closed}",
    "{open}/.%2E{closed}",
    "{open}/..%2f{closed}",
    "{open}/..%5c{closed}",
    "{open}\\..{closed}",
    "{open}/{closed}",
    "/{closed}",
    "//127.0.0.1{closed}",
    "http://127.0.0.1{closed}",
    "http://127.0.0.1{open}/..{closed}",
    "{open}#{closed}",
    "{open}#/..{closed}",
    "{open}%23/..{closed}",
    "{open}%00/..{closed}",
    "{open}\0/..{closed}",
    "{open}../..{closed}",
    "{open}.",
    "{open};{closed}",
    "{closed}?{open}",
    "{closed}#{open}",
    "{closed}/",
    "{closed}.",
)
BODY = b'{"messages":[{"role":"user","content":"Hi"}],"max_tokens":3,"ignore_eos":true}'
JSON = b"content-type: application/json\r\n"
LENGTH = b"content-length: %d\r\n" % len(BODY)
CHUNKED = b"%x\r\n%s\r\n0\r\n" % (len(BODY), BODY)
CLOSE = b" HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n" + JSON
CHAT = b"POST /v1/chat/completions" + CLOSE
KEY = b"authorization: Bearer one\r\n"
FORGED = b"x-foreword-tenant: one\r\nx-foreword-sent: 0\r\n"
SMUGGLED = (
    CHAT + LENGTH + b"\r\n" + BODY,
    CHAT + LENGTH + b"content-length: 0\r\n\r\n" + BODY,
    CHAT + LENGTH + b"transfer-encoding: chunked\r\n\r\n" + CHUNKED + b"\r\n",
    CHAT + b"transfer-encoding: chunked\r\n\r\n" + CHUNKED + KEY + b"\r\n",
    CHAT + FORGED + LENGTH + b"\r\n" + BODY,
)
"""Requests without a key; a trailer is none."""
HEALTH = b"GET /health HTTP/1.1\r\nhost: localhost\r\n"


class Stranger:
    """A client with a socket."""

    def __init__(self, url: Any) -> None:
        address = urlsplit(str(url))
        self._address = address.hostname, address.port

    def send(self, content: bytes) -> list[tuple[int, bytes]]:
        """Return status and rest of every response to what is sent on a connection."""
        with socket.create_connection(self._address, timeout=500) as connection:
            connection.sendall(content)
            answer = b"".join(iter(lambda: connection.recv(2**16), b""))
        parts = re.split(rb"HTTP/1\.1 (\d{3})", answer)[1:]
        pairs = zip(parts[::2], parts[1::2], strict=True)
        return [(int(status), rest) for status, rest in pairs]

    def ask(self, method: str, target: str) -> tuple[int, bytes]:
        """Return the answer to a request with a body that generates."""
        line = f"{method} {target}".encode()
        (answer,) = self.send(line + CLOSE + LENGTH + b"\r\n" + BODY)
        return answer

    def try_everything(self, *, reads_trailers: bool = False) -> None:
        """Assert that only open paths answer; `reads_trailers`: keys there count."""
        for path in OPEN:
            assert self.ask("GET", path)[0] == 200, path
            assert self.ask("GET", f"{path}?/../v1/models")[0] == 200, path
        targets = set()
        for form, path, (closed, method) in product(DETOURS, OPEN, CLOSED.items()):
            targets.add((method, form.format(open=path, closed=closed)))
        targets |= {("GET", path.upper()) for path in OPEN[1:]}
        targets |= {(method, path.upper()) for path, method in CLOSED.items()}
        targets |= {*product(("OPTIONS", "POST", "PUT", "TRACE"), (*OPEN, *CLOSED))}
        targets |= {("GET", path) for path in CLOSED}
        for method, target in sorted(targets):
            status, answer = self.ask(method, target)
            # Ray's own server drops what follows a "#"
            opened = "#" in target and target.partition("#")[0] in OPEN
            assert opened or 400 <= status < 500, (method, target, answer)
            assert b"choices" not in answer
        for request in SMUGGLED:
            if reads_trailers and KEY in request:
                continue
            assert {status for status, _ in self.send(request)} <= {400, 401}, request
            # behind one that is answered, on the same connection
            first, *rest = self.send(HEALTH + b"\r\n" + request)
            assert first[0] in (200, 400)  # Ray's own server refuses both
            assert {status for status, _ in rest} <= {400, 401}, request
            smuggled = LENGTH.replace(b"content", b"x") + b"content-length: 0\r\n\r\n"
            first, *rest = self.send(HEALTH + smuggled + request)
            assert {status for status, _ in rest} <= {400, 401}, request

    def generates(self) -> bool:
        """Return whether the same bytes generate with the key."""
        ((status, answer),) = self.send(CHAT + KEY + LENGTH + b"\r\n" + BODY)
        return status == 200 and b"choices" in answer


@pytest.fixture(scope="session")
def stranger() -> Callable[[Any], Stranger]:
    """Return a client without a key for an address."""
    return Stranger
