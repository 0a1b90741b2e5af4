"""Batches of several keys take turns, and one that ends its process does so twice."""

import json
import re
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx2 as httpx
import pytest

from foreword_server.batches.jobs import Attempts
from foreword_server.batches.lines import RequestFile
from foreword_server.settings import digest
from requested import CHAT, ENDED, answers, chat, uploaded, written
from serving import running


def test_batches_of_keys_take_turns_and_leave_a_place_to_clients(llm, tmp_path):
    keys = frozenset(map(digest, ("one", "two")))
    with running(llm, files=tmp_path, keys=keys, concurrent=2) as server:

        def asked(method: str, path: str, key: str, **body: Any) -> Any:
            headers = {"x-api-key": key}
            response = server.http.request(method, path, headers=headers, **body)
            assert response.status_code == 200, response.text
            return response.json()

        def begun(key: str, *requests: Any) -> str:
            file = uploaded(server, *requests, key=key)
            order = {"input_file_id": file["id"], "endpoint": CHAT}
            return asked("POST", "/v1/batches", key, json=order)["id"]

        long = [chat(number, max_tokens=64) for number in range(200)]
        first, second = begun("one", *long), begun("two", chat(0))
        batch: Any = {"status": ""}
        while batch["status"] not in ENDED:
            batch = asked("GET", f"/v1/batches/{second}", "two")
            asked("POST", CHAT, "one", json=chat(1, max_tokens=1)["body"])
        assert batch["request_counts"] == {"total": 1, "completed": 1, "failed": 0}
        other = asked("GET", f"/v1/batches/{first}", "one")
        assert other["status"] == "in_progress"
        asked("POST", f"/v1/batches/{first}/cancel", "one")


def test_request_that_was_sent_when_two_processes_ended_is_known(tmp_path):
    requests = (chat(number) for number in range(4))
    lines = RequestFile(written(tmp_path / "in", *requests)).lines
    path = tmp_path / "sent"
    for count in (3, 1):
        killed = Attempts(path)
        for line in lines[:count]:
            killed.begin(line)
            killed.begin(line)  # the server was busy
        killed._file.close()
    with Attempts(path) as attempts:
        parts = attempts.parted(lines)
    assert parts == ([lines[3]], lines[1:3], [lines[0]])
    assert not path.exists()


@contextmanager
def serving(folder: Path) -> Iterator[httpx.Client]:
    """Run a server in a process that is killed in the end."""
    words = (sys.executable, "-m", "foreword", "serve", "--port", "0", "--files")
    with subprocess.Popen(
        [*words, str(folder)], stderr=subprocess.PIPE, text=True
    ) as process:
        try:
            lines = process.stderr or ()
            found = (re.search(r"http://[\d.]+:\d+", line) for line in lines)
            address = next(match[0] for match in found if match)
            with httpx.Client(base_url=address, timeout=120) as client:
                yield client
        finally:
            process.kill()


@pytest.mark.slow
def test_line_that_two_killed_servers_were_answering_fails_alone(tmp_path):
    long = chat(1, max_tokens=100_000, ignore_eos=True)
    text = "\n".join(json.dumps(line) for line in (chat(0), long, chat(2)))
    with serving(tmp_path) as client:
        sent = {"data": {"purpose": "batch"}, "files": {"file": ("a", text.encode())}}
        file = client.post("/v1/files", **sent).json()
        order = {"input_file_id": file["id"], "endpoint": CHAT}
        path = f"/v1/batches/{client.post('/v1/batches', json=order).json()['id']}"
        while (batch := client.get(path).json())["request_counts"]["completed"] < 2:
            assert batch["status"] in ("validating", "in_progress")
    (attempts,) = tmp_path.glob("*/*.sent")
    with serving(tmp_path) as client:
        while len(attempts.read_text().split()) < 4:
            assert client.get(path).json()["status"] == "in_progress"
    with serving(tmp_path) as client:
        while (batch := client.get(path).json())["status"] not in ENDED:
            pass  # it has one line to fail
        assert batch["status"] == "completed"
        assert batch["request_counts"] == {"total": 3, "completed": 2, "failed": 1}
        lost = client.get(f"/v1/files/{batch['error_file_id']}/content").text
        (response,) = answers(lost).values()
    assert response["status_code"] == 500
    assert response["body"]["error"]["code"] == "request_ends_process"
