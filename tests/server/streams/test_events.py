"""Events beside the text: signs of life while a prompt is read, and rounds on request."""

import json
from itertools import islice
from typing import Any

import pytest

from foreword_server import reply
from owned import CHAT as TALE
from serving import Running

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


DRAFTING = {"nodes": 4, "method": "lm"}


def events(server: Running, path: str, **body: Any) -> list[dict[str, Any]]:
    """The JSON of every event of a stream."""
    with server.http.stream("POST", path, json={**body, "stream": True}) as response:
        lines = [
            line.removeprefix("data: ")
            for line in response.iter_lines()
            if line.startswith("data: ")
        ]
    return [json.loads(line) for line in lines if line != "[DONE]"]


def tokens(rounds: list[dict[str, Any]]) -> int:
    """Tokens that the rounds emitted."""
    return sum(len(one["pieces"]) for one in rounds)


def text(rounds: list[dict[str, Any]]) -> str:
    """The text that the rounds made final."""
    return "".join(piece for one in rounds for piece in one["pieces"])


def test_a_stream_has_every_round(server):
    chunks = events(
        server,
        "/v1/chat/completions",
        messages=TALE,
        seed=3,
        max_tokens=32,
        speculative=DRAFTING,
        stream_options={"include_speculation": True, "include_usage": True},
    )
    rounds = [
        choice["speculation"]
        for chunk in chunks
        for choice in chunk["choices"]
        if "speculation" in choice
    ]
    assert tokens(rounds) == chunks[-1]["usage"]["completion_tokens"]
    assert any(one["accepted"] for one in rounds)
    assert all(one["score_ms"] > 0 for one in rounds)
    plain = server.post(
        "/v1/chat/completions",
        messages=TALE,
        seed=3,
        max_tokens=32,
        speculative={"method": "none"},
    )
    whole = plain["choices"][0]["message"]["content"]
    assert (
        "".join(
            choice["delta"].get("content") or ""
            for chunk in chunks
            for choice in chunk["choices"]
        )
        == whole
    )
    assert text(rounds) == whole
    assert "rounds" not in plain["choices"][0]


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/v1/chat/completions", {"messages": TALE, "max_tokens": 24}),
        ("/v1/completions", {"prompt": "The river rose", "max_tokens": 24}),
        ("/v1/responses", {"input": TALE, "max_output_tokens": 24}),
        ("/v1/messages", {"messages": TALE, "max_tokens": 24}),
    ],
)
def test_a_whole_answer_has_its_rounds(server, path, body):
    answer = server.post(path, **body, seed=3, speculative={**DRAFTING, "trace": True})
    rounds = answer.get("rounds") or answer["choices"][0]["rounds"]
    usage = answer["usage"]
    assert tokens(rounds) == usage.get("completion_tokens", usage.get("output_tokens"))
    assert any(one["draft"] for one in rounds)
    streamed = events(
        server, path, **body, seed=3, speculative={**DRAFTING, "trace": True}
    )
    holders = [one for chunk in streamed for one in (chunk, *chunk.get("choices", ()))]
    found = [one["speculation"] for one in holders if "speculation" in one]
    # drafts may differ from time to time, the text may not
    assert text(found) == text(rounds)
