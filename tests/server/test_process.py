"""`foreword serve` as a process: starts, answers, drains on SIGTERM, or refuses."""

import re
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from os import environ, kill, mkfifo
from pathlib import Path

import httpx2 as httpx
import pytest

from waiting import line_with

KEY = {"x-api-key": "from-file"}


@dataclass(frozen=True)
class Server:
    """A server process and its address."""

    process: subprocess.Popen[str]
    url: str

    @property
    def port(self) -> int:
        return int(self.url.rpartition(":")[2])


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """One process for all: few descriptors, ignored interrupts, keys in both places."""
    keys = tmp_path_factory.mktemp("server") / "keys"
    keys.write_text("# ours\nfrom-file\n")
    options = ("--log-json", "--served-model-name", "mine", "--api-key-file", str(keys))
    options += ("--temperature", "0.4", "--top-k", "20", "--generation-config", "none")
    serve = (sys.executable, "-m", "foreword", "serve", "--port", "0")
    with subprocess.Popen(
        ["sh", "-c", 'ulimit -n 128; trap "" INT; exec "$@"', "sh", *serve, *options],
        stderr=subprocess.PIPE,
        text=True,
        env={**environ, "FOREWORD_API_KEYS": "from-env"},
    ) as process:
        try:
            found = line_with(r"http://[\d.]+:\d+", process)
            assert (
                "the bundled model, drafting with auto(lm, ngram, suffix) (draft), "
                "chat template of the folder, temperature 0.4, top-k 20\n"
            ) in found.string
            address = found[0]
            yield Server(process, address)
        finally:
            process.kill()


def test_keys_come_from_the_environment_and_a_file(server):
    codes = [
        httpx.get(f"{server.url}/v1/models", headers={"x-api-key": key}).status_code
        for key in ("from-file", "from-env", "none")
    ]
    assert codes == [200, 200, 401]


def test_options_of_sampling_are_the_defaults_of_requests(server):
    def text(**more: object) -> str:
        body = {"prompt": "The river", "max_tokens": 24, "seed": 3, **more}
        answer = httpx.post(f"{server.url}/v1/completions", json=body, headers=KEY)
        return answer.json()["choices"][0]["text"]

    assert text() == text(temperature=0.4, top_k=20)
    assert text() != text(temperature=1)


def test_port_in_use_is_refused(server, here):
    done = here("serve", "--port", str(server.port))
    assert done.returncode == 2
    assert "Address already in use" in done.stderr


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        (["--host", "0.0.0.0"], "without an API key"),
        (["--host", "999.1.1.1"], "cannot bind to"),
        (["--method", "magic"], "magic"),
        (["--temperature", "-1"], "temperature must be in [0, 100]"),
        (["--generation-config", "magic"], "magic"),
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
# a listener that was bound is left to the garbage collection
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_bad_options_are_refused_before_a_model_loads(
    options, reason, here, monkeypatch
):
    monkeypatch.setattr("foreword.model.Model.load", None)
    done = here("serve", "--port", "0", *options)
    assert done.returncode in (1, 2)
    assert reason in " ".join(done.stderr.split())
    assert "Traceback" not in done.stderr


def test_more_connections_than_descriptors_leave_a_server_that_answers(server):
    """Idle ones, then streams that are dropped."""
    ask = b'{"prompt": "The", "max_tokens": 200, "ignore_eos": true, "stream": true}'
    head = (
        b"POST /v1/completions HTTP/1.1\r\nhost: localhost\r\nx-api-key: from-file\r\n"
        b"content-type: application/json\r\n"
    )
    for sent in (b"", head + b"content-length: %d\r\n\r\n" % len(ask) + ask):
        with ExitStack() as opened:
            for _ in range(200):
                connection = opened.enter_context(
                    socket.create_connection(("127.0.0.1", server.port), timeout=60)
                )
                with suppress(ConnectionError):  # refused, as it may be
                    connection.sendall(sent)
            assert httpx.get(f"{server.url}/health", timeout=60).status_code == 200


@pytest.mark.skipif(sys.platform != "linux", reason="namespaces are Linux's")
def test_first_process_of_a_container_ends_by_sigterm_before_it_serves(tmp_path):
    apart = ("unshare", "--user", "--map-root-user", "--pid", "--fork")
    if subprocess.run([*apart, "true"], capture_output=True, check=False).returncode:
        pytest.skip("this user may not make namespaces")
    keys = tmp_path / "keys"
    mkfifo(keys)
    serve = (sys.executable, "-m", "foreword", "serve", "--api-key-file", str(keys))
    with subprocess.Popen([*apart, *serve]) as process:
        children = Path(f"/proc/{process.pid}/task/{process.pid}/children")
        with keys.open("w"):  # opens once the server reads it: no model is loaded
            kill(int(children.read_text()), signal.SIGTERM)
            assert process.wait(60) == 128 + signal.SIGTERM


def test_running_answers_finish_after_sigterm(server):
    """The last test of this file: the server has ended after it."""
    with httpx.Client(base_url=server.url, headers=KEY) as client:
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
            server.process.send_signal(signal.SIGINT)
            next(lines)
            server.process.send_signal(signal.SIGTERM)
            rest = [line for line in lines if line]
    assert rest[-1] == "data: [DONE]"
    assert '"finish_reason":"length"' in rest[-2]
    assert server.process.wait(60) == -signal.SIGTERM
    log = (server.process.stderr or sys.stderr).read()
    assert log.count('"event": "draining"') == 1
    assert '"path": "/v1/completions"' in log
    assert "The" not in re.sub(r"\w{4,}", "", log)
    assert "Traceback" not in log
    assert len(log) < 100_000, "the connections of the test before fill the log"
