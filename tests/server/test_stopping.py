"""How a server stops: balancers hear of it first, and a container's first process ends."""

import os
import signal
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

import httpx2 as httpx
import pytest

APART = ("unshare", "--user", "--map-root-user", "--pid", "--fork")
"""Run a command as the first process of a namespace, as in a container."""


def test_requests_are_answered_until_balancers_know(serving):
    body = {"prompt": "The", "max_tokens": 4, "seed": 1}
    with serving(leave=3600.0) as server:
        before = server.http.post("/v1/completions", json=body)
        server.server.handle_exit(signal.SIGTERM, None)
        assert server.http.get("/ready").status_code == 503
        after = server.http.post("/v1/completions", json=body)
        assert after.json()["choices"] == before.json()["choices"]
        # the next request of this client goes to another server
        assert "connection" not in before.headers
        assert after.headers["connection"] == "close"
        server.server._refuses_at = 0.0
        with suppress(httpx.TransportError):
            while server.http.get("/health").status_code == 200:
                assert server.http.get("/ready").status_code == 503
        assert server.service.draining


@pytest.mark.skipif(sys.platform != "linux", reason="namespaces are Linux's")
def test_first_process_of_a_container_ends_by_sigterm_before_it_serves(tmp_path):
    if subprocess.run([*APART, "true"], capture_output=True, check=False).returncode:
        pytest.skip("this user may not make namespaces")
    keys = tmp_path / "keys"
    os.mkfifo(keys)
    serve = (sys.executable, "-m", "foreword", "serve", "--api-key-file", str(keys))
    with subprocess.Popen([*APART, *serve]) as process:
        try:
            with keys.open("w"):  # opens once the server reads it: no model is loaded
                children = Path(f"/proc/{process.pid}/task/{process.pid}/children")
                (first,) = children.read_text().split()
                os.kill(int(first), signal.SIGTERM)
                assert process.wait(60) == 128 + signal.SIGTERM
        finally:
            process.kill()
