"""Proxies in front of a real server that break one thing each. Test code."""

import json
from collections.abc import Callable
from contextlib import AbstractContextManager
from http.server import BaseHTTPRequestHandler
from threading import Lock
from typing import Any
from urllib.error import HTTPError
from urllib.request import ProxyHandler, Request, build_opener

import serving

Body = dict[str, Any]
Answers = Callable[[str, Body | None], tuple[int, Body]]
"""(path, body of a POST) -> status and body."""
OPENER = build_opener(ProxyHandler({}))


class Fault:
    """A proxy that changes nothing; what is broken overrides one method."""

    def asked(self, path: str, body: Body) -> Body:
        """Return the body that the server gets."""
        return body

    def answered(self, path: str, body: Body, answer: Body) -> Body:
        """Return the body that the client gets."""
        return answer


class IgnoresSeed(Fault):
    """sglang#15481: the seed has no effect on /v1/completions."""

    def asked(self, path: str, body: Body) -> Body:
        if path != "/v1/completions":
            return body
        return {name: value for name, value in body.items() if name != "seed"}


class OtherTextTogether(Fault):
    """Another text while two requests run at once."""

    def __init__(self) -> None:
        self.lock = Lock()
        self.inside = 0
        self.together = False

    def asked(self, path: str, body: Body) -> Body:
        with self.lock:
            self.inside += 1
            self.together = self.together or self.inside > 1
        return body

    def answered(self, path: str, body: Body, answer: Body) -> Body:
        with self.lock:
            self.inside -= 1
            together, self.together = self.together, self.inside > 0
        return changed_text(answer) if together else answer


class StalePrefix(Fault):
    """vllm#43559: a text read again starts from the states of another one."""

    def __init__(self) -> None:
        self.seen: list[str] = []

    def asked(self, path: str, body: Body) -> Body:
        prompt = json.dumps(body.get("prompt") or body.get("messages"))
        is_stale = prompt in self.seen and self.seen[-1] != prompt
        self.seen.append(prompt)
        if is_stale and "prompt" in body:
            return {**body, "prompt": body["prompt"][:-20]}
        return body


class HalfTemperature(Fault):
    """sglang#39253: samples at another temperature than it was asked for."""

    def asked(self, path: str, body: Body) -> Body:
        if "temperature" not in body:
            return body
        return {**body, "temperature": body["temperature"] / 2}


class NoLogprobs(Fault):
    """Refuses requests for log-probabilities."""

    def asked(self, path: str, body: Body) -> Body:
        return {"messages": 1} if body.get("logprobs") else body


class DraftsAtHalfTemperature(NoLogprobs):
    """Samples at another temperature with drafting on."""

    def asked(self, path: str, body: Body) -> Body:
        body = super().asked(path, body)
        if "speculative" in body or "temperature" not in body:
            return body
        return {**body, "temperature": body["temperature"] / 2}


class CallAsContent(Fault):
    """vllm#46118: a call that was cut off comes back as content."""

    def answered(self, path: str, body: Body, answer: Body) -> Body:
        choice = answer["choices"][0]
        calls = choice.get("message", {}).get("tool_calls")
        if calls and choice["finish_reason"] == "length":
            function = calls[0]["function"]
            choice["message"]["content"] = json.dumps(function)
            del choice["message"]["tool_calls"]
        return answer


class CutSaysStop(Fault):
    """An answer that was cut off claims to be whole."""

    def answered(self, path: str, body: Body, answer: Body) -> Body:
        answer["choices"][0]["finish_reason"] = "stop"
        return answer


class DraftsChangeText(Fault):
    """With drafting on, another text."""

    def answered(self, path: str, body: Body, answer: Body) -> Body:
        is_plain = body.get("speculative") == {"method": "none"}
        return answer if is_plain else changed_text(answer)


class DraftsAlways(Fault):
    """llama-server: no request turns drafting off."""

    def asked(self, path: str, body: Body) -> Body:
        off = ("speculative", "speculative.n_max")
        return {name: value for name, value in body.items() if name not in off}


class DraftsUnlisted(Fault):
    """llama-server: drafted tokens come without log-probabilities."""

    def answered(self, path: str, body: Body, answer: Body) -> Body:
        table = answer["choices"][0].get("logprobs") or {}
        for entry in (table.get("content") or [])[1:-1]:
            entry.update(logprob=0.0, top_logprobs=[])
        for listed in (table.get("top_logprobs") or [])[1:-1]:
            listed.clear()
        return answer


class OtherTextListed(Fault):
    """Another text where log-probabilities are asked for: those alone are honest."""

    def answered(self, path: str, body: Body, answer: Body) -> Body:
        return changed_text(answer) if body.get("logprobs") else answer


class WritesStop(Fault):
    """A stop text that begins an accepted draft is written."""

    def answered(self, path: str, body: Body, answer: Body) -> Body:
        if len(body.get("stop", [""])[0]) > 4:
            answer["choices"][0]["text"] += body["stop"][0]
        return answer


class OneTooMany(Fault):
    """The last draft token goes beyond the length."""

    def asked(self, path: str, body: Body) -> Body:
        return {**body, "max_tokens": body["max_tokens"] + 1}


class ForcesGreedyOnly(Fault):
    """A bias that sampling does not read."""

    def asked(self, path: str, body: Body) -> Body:
        if not body.get("temperature"):
            return body
        return {name: value for name, value in body.items() if name != "logit_bias"}


class Unfiltered(Fault):
    """Knows no filter."""

    def asked(self, path: str, body: Body) -> Body:
        return {**body, "top_k": 0, "top_p": 1.0, "min_p": 0}


class FiltersHalf(Fault):
    """A filter that half of the requests have, as if draft tokens passed it."""

    def asked(self, path: str, body: Body) -> Body:
        return {**body, "top_k": 0} if body.get("seed", 0) % 2 else body


class Fails(Fault):
    """Answers with an object that has no choice."""

    def answered(self, path: str, body: Body, answer: Body) -> Body:
        return {"object": "nothing"}


def changed_text(answer: Body) -> Body:
    """Return the answer with its text reversed."""
    for choice in answer["choices"]:
        if "text" in choice:
            choice["text"] = choice["text"][::-1]
        elif choice["message"].get("content"):
            choice["message"]["content"] = choice["message"]["content"][::-1]
    return answer


def broken(url: str, fault: Fault) -> AbstractContextManager[str]:
    """Run a proxy in front of a server; yield its address."""

    def answer(path: str, body: Body | None) -> tuple[int, Body]:
        if body is None:
            return forward(url + path, None)
        status, answer = forward(url + path, fault.asked(path, dict(body)))
        if status == 200:
            answer = fault.answered(path, body, answer)
        return status, answer

    return answering(answer)


def answering(answer: Answers) -> AbstractContextManager[str]:
    """Run a server that answers by a function; yield its address."""

    class Handler(serving.Quiet, BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.reply(*answer(self.path, None))

        def do_POST(self) -> None:
            length = int(self.headers["content-length"])
            body = json.loads(self.rfile.read(length))
            self.reply(*answer(self.path, body))

        def reply(self, status: int, answer: Body) -> None:
            data = json.dumps(answer).encode()
            self.send_response(status)
            self.send_header("content-type", "application/json")
            self.send_header("content-length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)

    return serving.answering(Handler)


def forward(url: str, body: Body | None) -> tuple[int, Body]:
    """Return the status and the JSON of the real server's answer."""
    data = None if body is None else json.dumps(body).encode()
    headers = {"content-type": "application/json"}
    try:
        with OPENER.open(Request(url, data, headers), timeout=120) as response:
            return response.status, json.loads(response.read())
    except HTTPError as error:
        return error.code, json.loads(error.read())
