"""Requests for text and what they answer, on completions and on chat."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Any, Literal

from foreword_lab.certify.remote.client import Body, Broken, Server

Endpoint = Literal["completions", "chat"]
PATHS: dict[Endpoint, str] = {
    "completions": "/completions",
    "chat": "/chat/completions",
}
TOPICS = (
    "a river",
    "the sea at night",
    "an old clock",
    "bread",
    "a journey by train",
    "winter",
    "a garden",
    "music",
)
"""Subjects of prompts: enough different ones for a batch."""
ROUNDING = 0.25
"""Nats. Two steps of bfloat16 at scores of 16 to 32: two scores may be off by one step
each.
"""

TRIES = 3
"""Requests. Texts that are asked for until one begins as two others do."""


def prompt(topic: str, name: object = "") -> str:
    """Return a prompt about a topic; a name makes it new to the server's cache."""
    return f"Notes{name}. Once upon a time there was a story about {topic}. It began"


def request(
    endpoint: Endpoint, text: str, **parameters: object
) -> tuple[str, dict[str, Any]]:
    """Return the path and the body of a request for one text."""
    if endpoint == "completions":
        return PATHS[endpoint], {"prompt": text, **parameters}
    messages = [{"role": "user", "content": text}]
    return PATHS[endpoint], {"messages": messages, **parameters}


def sampling(seed: int, temperature: float, tokens: int) -> dict[str, object]:
    """Return the parameters of a text of so many tokens."""
    return {"seed": seed, "temperature": temperature, "max_tokens": tokens}


def choice_of(answer: Any) -> Mapping[str, Any]:
    """Return the only choice of an answer. Raises Broken if there is none."""
    try:
        choice = answer["choices"][0]
    except (LookupError, TypeError) as error:
        raise Broken(f"an answer has no choice: {answer!r}"[:300]) from error
    if not isinstance(choice, Mapping):
        raise Broken(f"a choice is not an object: {choice!r}"[:300])
    return choice


def text_of(answer: Any) -> str:
    """Return the text of an answer, reasoning and calls included; empty if it is
    null.
    """
    choice = choice_of(answer)
    if "text" in choice:
        return choice["text"] or ""
    message = choice.get("message") or {}
    reasoning = message.get("reasoning_content") or message.get("reasoning") or ""
    calls = [call.get("function") for call in message.get("tool_calls") or ()]
    called = json.dumps(calls) if calls else ""
    return reasoning + (message.get("content") or "") + called


@dataclass(frozen=True, slots=True)
class Scored:
    """A token of an answer, with the likeliest tokens at its place."""

    token: str
    logprob: float | None
    """Log-probability, if it is listed."""
    top: tuple[tuple[str, float], ...]
    """(token, log-probability), likeliest first."""

    @property
    def known_logprob(self) -> float:
        """Log-probability as it is listed, the first of several that are written alike;
        that of the last listed token where it is unknown.
        """
        logprob = dict(reversed(self.top)).get(self.token, self.logprob)
        return self.top[-1][1] if logprob is None else logprob


def scored(answer: Any) -> list[Scored]:
    """Return the tokens of an answer with log-probabilities, of either endpoint; none
    where it has none.
    """
    table = choice_of(answer).get("logprobs")
    if not table:
        return []
    if table.get("content") is not None:
        return [_of_chat(one) for one in table["content"]]
    tokens, likeliest = (table.get(name) or () for name in ("tokens", "top_logprobs"))
    logprobs = table.get("token_logprobs") or [None] * len(tokens)
    rows = zip(tokens, logprobs, likeliest, strict=False)
    return [
        Scored(token, logprob, _sorted((top or {}).items()))
        for token, logprob, top in rows
    ]


def _of_chat(entry: Mapping[str, Any]) -> Scored:
    top = [(each["token"], each["logprob"]) for each in entry.get("top_logprobs") or ()]
    return Scored(entry["token"], entry.get("logprob"), _sorted(top))


def _sorted(top: Any) -> tuple[tuple[str, float], ...]:
    """Return what is listed, likeliest first; nothing for an impossible number."""
    listed = sorted(top, key=lambda pair: -pair[1])
    # not <, as NaN is neither
    if any(not logprob < ROUNDING for _, logprob in listed):
        return ()
    return tuple(listed)


def with_logprobs(endpoint: Endpoint, most: int) -> dict[str, object]:
    """Return the parameters that ask for log-probabilities."""
    if endpoint == "completions":
        return {"logprobs": most}
    return {"logprobs": True, "top_logprobs": most}


def margin(
    server: Server, query: tuple[str, Body], texts: tuple[str, str]
) -> float | None:
    """Return how far the two likeliest tokens lie apart where two greedy texts part, in
    nats; None if the server does not say, of that very token.
    """
    path, body = query
    endpoint: Endpoint = "completions" if path == PATHS["completions"] else "chat"
    start = common(texts)
    for _ in range(TRIES):
        answer = server.post(path, {**body, **with_logprobs(endpoint, 2)})
        tokens = scored(answer)
        if not "".join(token.token for token in tokens).startswith(start):
            # rounding made this text part before
            continue
        ends = accumulate(len(token.token) for token in tokens)
        for token, end in zip(tokens, ends, strict=True):
            if end > len(start):
                if len(token.top) < 2:
                    return None
                return token.top[0][1] - token.top[1][1]
    return None


def common(texts: Sequence[str]) -> str:
    """Return the beginning that two texts share."""
    first, second = texts
    shared = zip(first, second, strict=False)
    end = next((at for at, (one, two) in enumerate(shared) if one != two), None)
    return first[:end] if end is not None else min(first, second, key=len)
