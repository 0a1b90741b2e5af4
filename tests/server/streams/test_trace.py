"""Rounds on request: in streams, in whole answers, in every dialect; never without."""

import json
from typing import Any

import pytest

from owned import CHAT as TALE
from serving import Running

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
