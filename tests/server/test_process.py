"""`foreword serve` as a process: it starts, answers, drains on SIGTERM, and refuses bad
options at once.
"""

from __future__ import annotations

import os
import re
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

import httpx2 as httpx
import pytest

COMMAND = [sys.executable, "-m", "foreword", "serve", "--port", "0"]


@contextmanager
def process(
    *options: str, before: str = "true", **environment: str
) -> Iterator[tuple[subprocess.Popen[str], str]]:
    """A server process and its address.

    `before`: what its shell does before it becomes the server.
    """
    command = ["sh", "-c", f'{before}; exec "$@"', "sh", *COMMAND, *options]
    with subprocess.Popen(
        command, stderr=subprocess.PIPE, text=True, env={**os.environ, **environment}
    ) as server:
        try:
            lines = iter(server.stderr or ())
            address = next(
                match[0]
                for line in lines
                if (match := re.search(r"http://[\d.]+:\d+", line))
            )
            yield server, address
        finally:
            server.kill()


def test_running_answers_finish_after_sigterm() -> None:
    with (
        process("--log-json", "--served-model-name", "mine") as (server, url),
        httpx.Client(base_url=url) as client,
    ):
        assert client.get("/v1/models").json()["data"][0]["id"] == "mine"
        body = {
            "prompt": "The",
            "max_tokens": 300,
            "stream": True,
            "ignore_eos": True,
            "seed": 1,
            "model": "mine",
        }
        with client.stream("POST", "/v1/completions", json=body, timeout=60) as stream:
            lines = stream.iter_lines()
            next(lines)
            server.send_signal(signal.SIGTERM)
            rest = [line for line in lines if line]
        assert rest[-1] == "data: [DONE]"
        assert '"finish_reason":"length"' in rest[-2]
        assert server.wait(60) == -signal.SIGTERM
        log = (server.stderr or sys.stderr).read()
    assert '"event": "draining"' in log
    assert '"path": "/v1/completions"' in log
    assert "The" not in re.sub(r"\w{4,}", "", log)


def test_keys_come_from_the_environment_and_a_file(tmp_path: Path) -> None:
    file = tmp_path / "keys"
    file.write_text("# ours\nfrom-file\n")
    with process("--api-key-file", str(file), FOREWORD_API_KEYS="from-env") as (_, url):
        codes = [
            httpx.get(f"{url}/v1/models", headers={"x-api-key": key}).status_code
            for key in ("from-file", "from-env", "none")
        ]
    assert codes == [200, 200, 401]


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        (["--host", "0.0.0.0"], "without an API key"),
        (["--host", "999.1.1.1"], "cannot bind to"),
        (["--method", "magic"], "magic"),
        (["--tool-format", "magic"], "magic"),
        (["/no/such/model"], "no such folder"),
        (["--max-body", "inf"], "cannot use --max-body inf: it must be a number"),
        (["--rate", "inf"], "cannot use --rate inf: it must be a number"),
        (["--drain", "inf"], "cannot use --drain inf: it must be a number"),
        (["--host", "two words"], "it is not a host name or an address"),
        (["--allowed-host", "http://x"], "it is not a host name or an address"),
        (["--api-key-file", "/tmp"], "cannot read keys from /tmp: "),
        (["--api-key-file", sys.executable], "it is not UTF-8"),
    ],
)
def test_bad_options_are_refused_before_a_model_loads(
    options: list[str], reason: str
) -> None:
    done = subprocess.run(
        [*COMMAND, *options], capture_output=True, text=True, check=False
    )
    assert done.returncode in (1, 2)
    assert reason in " ".join(done.stderr.split())
    assert "Traceback" not in done.stderr


def test_more_connections_than_descriptors_leave_a_server_that_answers() -> None:
    """Idle ones, then streams that are dropped; the log stays short, and the server
    ends when it is told to.
    """
    ask = b'{"prompt": "The", "max_tokens": 200, "ignore_eos": true, "stream": true}'
    head = (
        b"POST /v1/completions HTTP/1.1\r\nhost: localhost\r\ncontent-type: "
        b"application/json\r\n"
    )
    with process(before="ulimit -n 128") as (server, url):
        host, port = url.removeprefix("http://").split(":")
        for sent in (b"", head + b"content-length: %d\r\n\r\n" % len(ask) + ask):
            with ExitStack() as opened:
                for _ in range(200):
                    connection = opened.enter_context(
                        socket.create_connection((host, int(port)), timeout=60)
                    )
                    with suppress(ConnectionError):  # refused, as it may be
                        connection.sendall(sent)
                assert httpx.get(f"{url}/health", timeout=60).status_code == 200
        server.send_signal(signal.SIGTERM)
        assert server.wait(60) == -signal.SIGTERM
        log = (server.stderr or sys.stderr).read()
    assert "Traceback" not in log
    assert len(log) < 100_000


def test_a_port_in_use_is_refused() -> None:
    with process() as (_, url):
        port = url.rpartition(":")[2]
        done = subprocess.run(
            [*COMMAND, "--port", port], capture_output=True, text=True, check=False
        )
    assert done.returncode == 2
    assert "Address already in use" in done.stderr
