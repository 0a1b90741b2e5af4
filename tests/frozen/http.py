"""Bodies and streams of the server's four APIs: chat, completions, messages and
responses.

Ids, times and request numbers are replaced; everything else is recorded as it is sent.
"""

import json
import sys
from typing import Any

from foreword import LLM
from serving import Running, running

NODES = 4
"""Draft tokens of a round."""
QUESTION = (
    "Summarise: The river rose in the night and the miller moved his grain upstairs."
)
CHAT = [
    {"role": "system", "content": "Be brief."},
    {"role": "user", "content": QUESTION},
]
PARAMETERS = {
    "type": "object",
    "properties": {"city": {"type": "string"}},
    "required": ["city"],
}
WEATHER = {
    "name": "weather",
    "description": "The weather of a city.",
    "parameters": PARAMETERS,
}
FUNCTION = {"type": "function", "function": WEATHER}
SCHEMA = {"type": "json_schema", "json_schema": {"name": "place", "schema": PARAMETERS}}
REQUESTS: dict[str, tuple[str, dict[str, Any]]] = {
    "chat": ("/v1/chat/completions", dict(messages=CHAT, max_tokens=24, seed=3)),
    "chat, two with logprobs": (
        "/v1/chat/completions",
        dict(messages=CHAT, max_tokens=8, seed=3, n=2, logprobs=True, top_logprobs=2),
    ),
    "chat, stops": (
        "/v1/chat/completions",
        dict(messages=CHAT, max_tokens=40, seed=3, temperature=0, stop=[" the", "ver"]),
    ),
    "chat, a forced call": (
        "/v1/chat/completions",
        dict(
            messages=CHAT,
            max_tokens=40,
            seed=3,
            tools=[FUNCTION],
            tool_choice="required",
        ),
    ),
    "chat, a schema": (
        "/v1/chat/completions",
        dict(messages=CHAT, max_tokens=40, seed=3, response_format=SCHEMA),
    ),
    "chat, a bad field": (
        "/v1/chat/completions",
        dict(messages=CHAT, temperature="hot"),
    ),
    "completions": (
        "/v1/completions",
        dict(prompt="Once upon a time", max_tokens=24, seed=3),
    ),
    "completions, echo": (
        "/v1/completions",
        dict(
            prompt=["One.", "Two."],
            max_tokens=8,
            seed=3,
            temperature=0,
            echo=True,
            logprobs=1,
        ),
    ),
    "completions, no prompt": ("/v1/completions", dict(max_tokens=24)),
    "messages": (
        "/v1/messages",
        dict(messages=CHAT[1:], system="Be brief.", max_tokens=24, temperature=0),
    ),
    "messages, stops": (
        "/v1/messages",
        dict(messages=CHAT[1:], max_tokens=40, temperature=0, stop_sequences=[" the"]),
    ),
    "messages, a forced call": (
        "/v1/messages",
        dict(
            messages=CHAT[1:],
            max_tokens=40,
            temperature=0,
            tools=[{"name": "weather", "input_schema": PARAMETERS}],
            tool_choice={"type": "any"},
        ),
    ),
    "messages, no limit": ("/v1/messages", dict(messages=CHAT[1:])),
    "responses": (
        "/v1/responses",
        dict(input=QUESTION, instructions="Be brief.", max_output_tokens=24, seed=3),
    ),
    "responses, a forced call": (
        "/v1/responses",
        dict(
            input=QUESTION,
            max_output_tokens=40,
            seed=3,
            tools=[{"type": "function", **WEATHER}],
            tool_choice="required",
        ),
    ),
    "responses, a bad item": ("/v1/responses", dict(input=[{"type": "dream"}])),
}
"""Path and body of each request. Each is sent twice: for a body, and for a stream."""
CHANGING = frozenset(
    "created created_at completed_at id item_id response_id request_id call_id timings "
    "input_tokens cache_read_input_tokens".split()
)
"""Keys whose values differ from run to run. Tokens read from the cache are among them:
the first event of a message is sent while its prompt is looked up."""
DIGITS = 6
"""Decimal digits of numbers that are recorded: of logprobs, those that do not depend on
the form of the JSON.
"""


def steady(value: object) -> object:
    """Return JSON without what differs from run to run."""
    if isinstance(value, dict):
        return {
            key: "*" if key in CHANGING and inner is not None else steady(inner)
            for key, inner in value.items()
        }
    if isinstance(value, list):
        return [steady(inner) for inner in value]
    return round(value, DIGITS) if isinstance(value, float) else value


def event(line: str) -> object:
    """Return one line of a stream: the JSON of its data, or the line itself."""
    data = line.removeprefix("data: ")
    return steady(json.loads(data)) if data.startswith("{") else line


def exchange(server: Running, path: str, body: dict[str, Any]) -> dict[str, object]:
    """Return status and body of a request, and the lines of its stream."""
    whole = server.http.post(path, json=body)
    stream = server.http.post(path, json=body | {"stream": True})
    lines = [event(line) for line in stream.text.splitlines() if line]
    return {
        "status": [whole.status_code, stream.status_code],
        "body": steady(whole.json()),
        "stream": [json.dumps(line) for line in lines],
    }


def record() -> dict[str, object]:
    """Return what a server with the bundled models answers."""
    found: dict[str, object] = {}
    with LLM(nodes=NODES) as llm, running(llm) as server:
        for name, (path, body) in REQUESTS.items():
            sys.stderr.write(f"{name}\n")
            found[name] = exchange(server, path, body)
        found["models"] = steady(server.http.get("/v1/models").json())
    return found
