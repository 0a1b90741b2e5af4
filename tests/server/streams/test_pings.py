"""A stream that has nothing to say yet says that it lives, and how far it has read."""

import json
from itertools import islice
from typing import Any

import pytest

from foreword_server import reply

WORDS = "The river rose in the night and the miller moved his grain upstairs. " * 20
BODIES: dict[str, dict[str, Any]] = {
    "/v1/chat/completions": {"messages": [{"role": "user", "content": WORDS}]},
    "/v1/completions": {"prompt": WORDS},
    "/v1/messages": {"messages": [{"role": "user", "content": WORDS}]},
    "/v1/responses": {"input": WORDS},
}

PINGS = {
    "/v1/chat/completions": '"delta":{}',
    "/v1/completions": '"text":""',
    "/v1/messages": "event: ping",
    "/v1/responses": "event: response.in_progress",
}


@pytest.mark.parametrize("path", BODIES)
def test_a_silent_stream_pings(server, llm, monkeypatch, path):
    monkeypatch.setattr(reply, "PING_SECONDS", 0.01)
    most = "max_output_tokens" if path == "/v1/responses" else "max_tokens"
    body = BODIES[path] | {"stream": True, most: 500, "ignore_eos": True}
    with server.http.stream("POST", path, json=body) as response:
        lines = response.iter_lines()
        assert next(lines)  # it has begun
        if path == "/v1/responses":  # as every response begins
            assert PINGS[path] in lines
        with llm.session._lock:  # no round runs
            # an event that clients count, and no comment
            assert any(PINGS[path] in line for line in islice(lines, 40))
        assert any(line.startswith("data:") for line in lines)


def test_a_stream_says_how_much_of_the_prompt_is_read(server):
    body = BODIES["/v1/chat/completions"] | {"stream": True, "max_tokens": 4}
    text = server.http.post(
        "/v1/chat/completions", json=body | {"return_progress": True}
    ).text
    chunks = [
        json.loads(line.removeprefix("data: "))
        for line in text.splitlines()
        if line.startswith("data: {")
    ]
    shown = [one["prompt_progress"] for one in chunks if "prompt_progress" in one]
    used = server.post("/v1/chat/completions", **BODIES["/v1/chat/completions"])[
        "usage"
    ]
    totals = {one["total"] for one in shown}
    assert totals == {used["prompt_tokens"]}
    read = [one["processed"] for one in shown]
    assert read == sorted({*read})
    assert read[-1] == used["prompt_tokens"]
    first = next(
        place
        for place, one in enumerate(chunks)
        if one["choices"] and one["choices"][0]["delta"].get("content")
    )
    assert all("prompt_progress" not in one for one in chunks[first:])
    plain = server.http.post("/v1/chat/completions", json=body).text
    assert "prompt_progress" not in plain
