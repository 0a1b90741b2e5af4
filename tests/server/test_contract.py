"""The contract of docs/scaling/contract.md, by a balancer that is not ours."""

import json
from typing import Any

import pytest

from serving import running

CHAT = "/v1/chat/completions"
ASK = {
    "messages": [{"role": "user", "content": "Count all numbers, each in words."}],
    "max_tokens": 60,
    "temperature": 0.9,
    "ignore_eos": True,
    "n": 2,
    "stream": True,
    "stream_options": {"include_usage": True, "include_speculation": True},
}
BODY = json.dumps(ASK).encode()
STATE = {"salt": "a", "seed": 1, "created": 1, "resumes": True}


class Balancer:
    """What a balancer keeps of one stream, by the page alone."""

    def __init__(self) -> None:
        self.client = b""
        """What its client has."""
        self.state: Any = None
        self.rounds: list[Any] = []

    def read(self, server: Any, most: int = 10**6) -> None:
        """Ask a server for the rest of the stream, and leave after some frames."""
        known = json.dumps([self.state, self.rounds]).encode() if self.state else b""
        headers = {"x-foreword-sent": str(len(known)), **JSON}
        request = server.http.stream(
            "POST", CHAT, content=known + BODY, headers=headers
        )
        held = b""
        with request as response:
            assert response.headers["content-type"] == "application/x-foreword-frames"
            for piece in response.iter_raw():
                held += piece
                while most and b"\n" in held:
                    line, _, rest = held.partition(b"\n")
                    kind, size, about = json.loads(line)
                    if len(rest) < size:
                        break
                    held, most = rest[size:], most - 1
                    self._take(kind, rest[:size], about)
                if not most:
                    return

    def _take(self, kind: str, content: bytes, about: Any) -> None:
        self.client += content
        if kind == "start":
            self.state = about
        if kind == "round":
            round_ = about["choice"], about["tokens"], about.get("trace")
            self.rounds.append(round_)


JSON = {"content-type": "application/json"}


def test_another_server_goes_on_with_a_stream(serving):
    with serving(resume=True) as first, serving(resume=True) as second:
        cut = Balancer()
        cut.read(first, most=9)
        assert cut.state["resumes"]
        assert len(cut.rounds) >= 5
        # the same answer again, undisturbed, of the same seed and ids
        whole = Balancer()
        whole.state = cut.state
        whole.read(first)
        cut.read(second)
    assert shown(cut.client) == shown(whole.client)
    (name, texts, reasons) = shown(cut.client)
    assert name.startswith("chatcmpl-")
    assert all(len(text) > 20 for text in texts.values())
    assert reasons == {0: "length", 1: "length"}
    assert cut.client.endswith(b"data: [DONE]\n\n")


def shown(stream: bytes) -> tuple[str, dict[int, str], dict[int, str]]:
    """Return the id of a stream, and the text and the end of each choice."""
    data = [line[6:] for line in stream.splitlines() if line.startswith(b"data: {")]
    (name,) = {json.loads(one)["id"] for one in data}
    texts, reasons = {0: "", 1: ""}, {}
    for choice in [one for event in data for one in json.loads(event)["choices"]]:
        texts[choice["index"]] += choice["delta"].get("content") or ""
        if choice["finish_reason"]:
            reasons[choice["index"]] = choice["finish_reason"]
    return name, texts, reasons


def test_a_server_that_was_not_asked_to_answers_clients_alone(server):
    headers = {"x-foreword-sent": "0", **JSON}
    plain = server.http.post(CHAT, content=BODY, headers=headers)
    assert plain.headers["content-type"].startswith("text/event-stream")


@pytest.mark.parametrize(
    ("size", "known"),
    [
        ("x", b""),
        ("-3", b""),
        ("9" * 5000, b""),
        (None, b"[" * 100_000),
        (None, [STATE]),
        (None, [STATE, [[0, "x", None]]]),
        (None, [{**STATE, "seed": -1}, []]),
        (None, [{**STATE, "seed": 2**70}, []]),
        (None, [STATE, [[0, [5], None]] * 200_000]),
        (None, [STATE, [[2, [5], None]]]),
        (None, [STATE, [[0, [], None]]]),
        (None, [STATE, [[0, [10**9], None]]]),
        (None, [STATE, [[0, [-1], None]]]),
        (None, [STATE, [[0, [5], {"tokens": 1}]]]),
    ],
)
def test_a_state_that_no_answer_has_is_refused(resuming, size, known):
    prefix = known if isinstance(known, bytes) else json.dumps(known).encode()
    size = str(len(prefix)) if size is None else size
    headers = {"x-foreword-sent": size, **JSON}
    refused = resuming.http.post(CHAT, content=prefix + BODY, headers=headers)
    assert refused.status_code == 400, refused.text
    assert refused.json()["error"]["type"] == "invalid_request_error"


def test_rounds_beyond_the_end_of_an_answer_are_left_out(resuming):
    known = json.dumps([STATE, [[0, [5] * 100, None], [0, [6], None]]]).encode()
    headers = {"x-foreword-sent": str(len(known)), **JSON}
    answered = resuming.http.post(CHAT, content=known + BODY, headers=headers)
    assert answered.status_code == 200
    assert b"[DONE]" in answered.content


@pytest.fixture(scope="module")
def resuming(llm):
    with running(llm, resume=True) as server:
        yield server
