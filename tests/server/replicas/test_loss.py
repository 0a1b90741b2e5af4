"""A replica is killed while it answers: the client reads the same text to its end."""

import json
import os
import signal
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from grids import slow_case

LONG = 700
"""Tokens: an answer takes so long that its replica is killed before it ends."""
SOME = 100
"""Characters that every answer has."""
ASK = "Count all numbers from one on, each in words, and never stop."
MESSAGES = [{"role": "user", "content": ASK}]
COMMON = {"stream": True, "temperature": 0.9, "seed": 11, "ignore_eos": True}
BODIES = {
    "/v1/chat/completions": {
        "messages": MESSAGES,
        "max_tokens": LONG,
        "n": 2,
        "logprobs": True,
        "stream_options": {"include_usage": True, "include_speculation": True},
        **COMMON,
    },
    "/v1/completions": {
        "prompt": [ASK, "Once upon a time"],
        "max_tokens": LONG,
        "stream_options": {"include_usage": True},
        **COMMON,
    },
    "/v1/responses": {"input": ASK, "max_output_tokens": LONG, **COMMON},
    "/v1/messages": {"messages": MESSAGES, "max_tokens": LONG, **COMMON},
}


def read(lines: Any) -> list[Any]:
    """Return the data of events."""
    data = [line.removeprefix("data: ") for line in lines if line.startswith("data: ")]
    return [json.loads(one) for one in data if one != "[DONE]"]


def texts(events: list[Any]) -> dict[int, str]:
    """Return the text of each choice."""
    found: dict[int, str] = {}
    for event in events:
        for choice in event.get("choices") or ():
            text = choice.get("text") or choice.get("delta", {}).get("content") or ""
            found[choice["index"]] = found.get(choice["index"], "") + text
        delta = event.get("delta")
        if isinstance(delta, str):
            found[0] = found.get(0, "") + delta
        elif isinstance(delta, dict):
            found[0] = found.get(0, "") + delta.get("text", "")
    return found


def shape(events: list[Any]) -> list[Any]:
    """Return what identifies the events, without their texts and times."""
    return [one.get("type") or one.get("object") for one in events]


def check_recordings(events: list[Any]) -> None:
    """Check that recordings of traced answers have all rounds, as clients have them."""
    choices = [one for event in events for one in event.get("choices") or ()]
    for index in (0, 1):
        rounds = [
            one["speculation"]
            for one in choices
            if one["index"] == index and "speculation" in one
        ]
        (recording,) = [
            one["recording"]
            for one in choices
            if one["index"] == index and "recording" in one
        ]
        pieces = [piece for one in rounds for piece in one["pieces"]]
        assert recording["answer"] == "".join(pieces)
        assert recording["totals"]["tokens"] == len(pieces) == LONG
        assert recording["totals"]["rounds"] == len(rounds)
        assert recording["totals"]["accepted"] > 0


def cut_stream(router: Any, path: str, body: Any, *signals: int) -> list[str]:
    """Return the lines of a stream whose replica is ended after five events."""
    lines: list[str] = []
    with router.http.stream("POST", path, json=body) as cut:
        rest = cut.iter_lines()
        while len(read(lines)) < 5:
            lines.append(next(rest))
        router.kill(router.busy, *signals)
        return [*lines, *rest]


@pytest.mark.parametrize(
    "path", ["/v1/chat/completions", *(slow_case(path) for path in [*BODIES][1:])]
)
def test_stream_goes_on_at_another_replica(router: Any, path: str) -> None:
    body = BODIES[path]
    router.all_ready()
    with router.http.stream("POST", path, json=body) as plain:
        expected = read(plain.iter_lines())
    before = router.metric("foreword:requests_continued_total")
    events = read(cut_stream(router, path, body))
    assert router.metric("foreword:requests_continued_total") == before + 1
    assert texts(events) == texts(expected)
    assert all(len(text) > SOME for text in texts(events).values())
    if path == "/v1/chat/completions":
        check_recordings(events)
    assert {*shape(events)} == {*shape(expected)}
    assert shape(events)[-1] == shape(expected)[-1]
    numbers = [one["sequence_number"] for one in events if "sequence_number" in one]
    assert numbers == [*range(len(numbers))]
    for name in ("id", "item_id", "created"):
        assert len({one[name] for one in events if name in one}) <= 1


@pytest.mark.slow
def test_drafts_were_accepted(router: Any) -> None:
    """The comparisons above are of drafted texts."""
    path = "/v1/chat/completions"
    router.http.post(path, json=BODIES[path])
    accepted = router.metric("vllm:spec_decode_num_accepted_tokens_total")
    assert accepted > 0


@pytest.mark.slow
def test_stream_of_a_replica_that_hangs_goes_on(router: Any) -> None:
    path = "/v1/chat/completions"
    router.all_ready()
    expected = router.http.post(path, json={**BODIES[path], "stream": False}).json()
    lines = cut_stream(router, path, BODIES[path], signal.SIGSTOP)
    assert ": ping" in lines
    contents = [one["message"]["content"] for one in expected["choices"]]
    assert [*texts(read(lines)).values()] == contents
    assert router.events("replica silent")


@pytest.mark.slow
def test_logprobs_and_seeds_of_both_halves_belong_together(router: Any) -> None:
    path = "/v1/chat/completions"
    router.all_ready()
    body = {**BODIES[path], "seed": None}
    events = read(cut_stream(router, path, body))
    choices = [choice for event in events for choice in event["choices"]]
    for index in (0, 1):
        own = [one for one in choices if one["index"] == index]
        (seed,) = {one["seed"] for one in own if one["finish_reason"]}
        scored = [
            entry["token"]
            for one in own
            for entry in (one["logprobs"] or {}).get("content", ())
        ]
        assert len(scored) == LONG
        again = {**body, "seed": seed, "n": 1, "stream": False}
        answer = router.http.post(path, json=again).json()["choices"][0]
        assert answer["message"]["content"] == texts(events)[index]


@pytest.mark.slow
def test_whole_answer_comes_from_another_replica(router: Any) -> None:
    path = "/v1/completions"
    router.all_ready()
    body = {**BODIES[path], "stream": False, "stream_options": None}
    expected = router.http.post(path, json=body).json()
    before = router.metric("foreword:requests_continued_total")
    with ThreadPoolExecutor(1) as pool:
        answer = pool.submit(router.http.post, path, json=body)
        router.kill(router.busy)
        found = answer.result().json()
    assert found["choices"] == expected["choices"]
    assert router.metric("foreword:requests_continued_total") == before + 1


@pytest.mark.slow
def test_backend_without_pages_goes_on_with_the_same_text(routing: Any) -> None:
    """It reads the text so far token by token, as it was written."""
    path = "/v1/chat/completions"
    body = {**BODIES[path], "max_tokens": 300, "n": 1}
    whole = {**body, "stream": False, "stream_options": None}
    with routing("--backend", "plain", "--method", "none") as router:
        router.all_ready()
        expected = router.http.post(path, json=whole).json()
        events = read(cut_stream(router, path, body))
        assert texts(events)[0] == expected["choices"][0]["message"]["content"]
        router.all_ready()
        with ThreadPoolExecutor(1) as pool:
            answer = pool.submit(router.http.post, path, json=whole)
            router.kill(router.busy)
            assert answer.result().json()["choices"] == expected["choices"]
        check_end(router)


def check_end(router: Any) -> None:
    """A signal to all processes lets an answer end, and starts none again."""
    router.all_ready()
    before = len(router.events("replica ready"))
    body = {"prompt": "Go on.", "max_tokens": 300, "ignore_eos": True, "stream": True}
    pids = [router.pid(name) for name in ("0", "1")]
    with router.http.stream("POST", "/v1/completions", json=body) as answer:
        lines = answer.iter_lines()
        next(lines)
        for pid in (*pids, router.process.pid):
            os.kill(pid, signal.SIGTERM)
        assert [*lines][-2:] == ["data: [DONE]", ""]
    assert router.process.wait(60) == -signal.SIGTERM
    assert len(router.events("replica ready")) == before
