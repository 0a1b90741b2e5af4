"""`foreword bench serve`, from the command line to the servers' processes."""

import json
import os
import subprocess
import sys
from dataclasses import replace
from http.client import HTTPConnection

import pytest

from foreword.errors import ForewordError, InvalidRequest
from foreword_lab.bench.exclusions import Exclusions
from foreword_lab.bench.peers.registry import Pair
from foreword_lab.bench.run import Options
from foreword_lab.bench.serving.run import serving
from foreword_lab.bench.serving.servers import (
    OURS,
    PLAIN,
    TRANSFORMERS,
    Served,
    command,
    free_port,
    running,
)
from foreword_train.gguf.source import Source


def no_source() -> Source:
    raise AssertionError("there is none to convert")


FILES = Served(None, None, "folder", "float32", 4, Pair(no_source, no_source, print))


@pytest.mark.slow
def test_all_servers_answer_and_ours_agree(tmp_path):
    file = tmp_path / "out.json"
    words = "bench serve --concurrency 1,2 --requests 2 --max-tokens 12 -t 0 --dtype float32 --json".split()
    process = subprocess.run(
        [sys.executable, "-m", "foreword", *words, str(file)],
        env=os.environ | {"OMP_NUM_THREADS": "1", "COLUMNS": "160"},
        capture_output=True,
        text=True,
        timeout=600,
        check=True,
    )
    found = json.loads(file.read_text(encoding="utf-8"))
    assert found["exclusions"] == {}
    keys = [(row["name"], row["concurrency"]) for row in found["rows"]]
    both = (OURS, PLAIN, TRANSFORMERS)
    assert keys == [
        *((name, 1) for name in both),
        ("foreword, no HTTP", 1),
        *((name, 2) for name in both),
    ]
    for row in found["rows"]:
        assert row["failures"] == []
        assert 0 < row["tokens"] <= 24
        assert row["tokens_per_second"] > 0
        assert row["differing"] == 0
        assert 0 < row["first_token"][0] <= row["first_token"][1]
    assert sum(row["accepted"] for row in found["rows"] if row["name"] == OURS) > 0
    assert found["rows"][0]["over_in_process"] > 0
    assert found["settings"]["requests"] == 2
    assert "× the speed without HTTP" in process.stdout


def test_concurrency_of_zero_is_refused_before_any_work():
    with pytest.raises(InvalidRequest, match="each must be from 1 to"):
        serving(Options(), (0, 1))


def test_missing_peer_is_left_out_with_its_package(monkeypatch):
    monkeypatch.setattr(
        "foreword_lab.bench.serving.servers.find_spec", lambda name: None
    )
    lines: list[str] = []
    out = Exclusions(lines.append, needed=PLAIN)
    with out.unless(TRANSFORMERS):
        command(TRANSFORMERS, FILES, 1)
    assert "Run: pip install 'transformers[serving]'" in out.reasons[TRANSFORMERS]
    assert len(lines) == 1


def test_all_servers_run_on_the_device_that_is_measured(monkeypatch):
    monkeypatch.setattr("foreword_lab.bench.serving.servers.NEEDS", ())
    files = replace(FILES, device="cuda:1")
    for name in (OURS, PLAIN, TRANSFORMERS):
        line = command(name, files, 1)
        assert line[line.index("--device") + 1] == "cuda:1"


def test_commands_differ_in_the_method_only():
    ours, plain = command(OURS, FILES, 1), command(PLAIN, FILES, 1)
    assert plain == [*ours, "--method", "none"]


def test_our_servers_get_the_form_of_the_weights():
    files = replace(FILES, weights="int8")
    assert command(OURS, files, 1) == [*command(OURS, FILES, 1), "--weights", "int8"]
    assert command(PLAIN, files, 1) == [*command(OURS, files, 1), "--method", "none"]


def test_error_of_an_ended_server_is_shown():
    with (
        pytest.raises(ForewordError, match="no such model"),
        running([sys.executable, "-c", "raise SystemExit('no such model')"], 1, {}),
    ):
        raise AssertionError("it is not ready")


LOADING = """
import sys
from http.server import BaseHTTPRequestHandler, HTTPServer

class Answers(BaseHTTPRequestHandler):
    statuses = iter([503, 503])

    def do_GET(self):
        self.send_response(next(self.statuses, 404))
        self.end_headers()

HTTPServer(("127.0.0.1", int(sys.argv[1])), Answers).serve_forever()
"""
"""A server whose socket opens before its model is loaded, without /health afterwards."""


def test_loading_server_is_waited_for():
    port = free_port()
    with running([sys.executable, "-c", LOADING, str(port)], port, {}):
        connection = HTTPConnection("127.0.0.1", port)
        connection.request("GET", "/")
        assert connection.getresponse().status == 404
        connection.close()
