"""Bodies and streams of the server's four APIs, without ids, times and numbers."""

import json
import sys
from typing import Any

import httpx2 as httpx

from foreword import LLM
from serving import running

NODES = 4
"""Draft tokens of a round."""
QUESTION = (
    "Summarise: The river rose in the night and the miller moved his grain upstairs."
)
USER = {"role": "user", "content": QUESTION}
CHAT = [{"role": "system", "content": "Be brief."}, USER]
PARAMETERS = {
    "type": "object",
    "properties": {"city": {"type": "string"}},
    "required": ["city"],
}
WEATHER = {"name": "weather", "description": "The weather of a city."}
WEATHER["parameters"] = PARAMETERS
FUNCTION = {"type": "function", "function": WEATHER}
SCHEMA = {"type": "json_schema", "json_schema": {"name": "place", "schema": PARAMETERS}}
Sent = tuple[str, dict[str, Any]]
"""Path and body of a request."""


def chat(most: int = 40, **more: Any) -> Sent:
    return "/v1/chat/completions", dict(messages=CHAT, max_tokens=most, seed=3) | more


def completions(**more: Any) -> Sent:
    return "/v1/completions", dict(seed=3, **more)


def messages(**more: Any) -> Sent:
    return "/v1/messages", dict(messages=[USER], temperature=0, **more)


def responses(most: int, **more: Any) -> Sent:
    body = dict(input=QUESTION, max_output_tokens=most, seed=3)
    return "/v1/responses", body | more


REQUESTS = {
    "chat": chat(24),
    "chat, two with logprobs": chat(8, n=2, logprobs=True, top_logprobs=2),
    "chat, stops": chat(temperature=0, stop=[" the", "ver"]),
    "chat, a forced call": chat(tools=[FUNCTION], tool_choice="required"),
    "chat, a schema": chat(response_format=SCHEMA),
    "chat, a bad field": chat(temperature="hot"),
    "completions": completions(prompt="Once upon a time", max_tokens=24),
    "completions, echo": completions(
        prompt=["One.", "Two."], max_tokens=8, temperature=0, echo=True, logprobs=1
    ),
    "completions, no prompt": completions(max_tokens=24),
    "messages": messages(system="Be brief.", max_tokens=24),
    "messages, stops": messages(max_tokens=40, stop_sequences=[" the"]),
    # cut: the counts of a whole call depend on when its end is seen
    "messages, a forced call": messages(
        max_tokens=32,
        tools=[{"name": "weather", "input_schema": PARAMETERS}],
        tool_choice={"type": "any"},
    ),
    "messages, no limit": messages(),
    "responses": responses(24, instructions="Be brief."),
    "responses, a forced call": responses(
        40, tools=[{"type": "function", **WEATHER}], tool_choice="required"
    ),
    "responses, a bad item": responses(24, input=[{"type": "dream"}]),
}
"""Each is sent twice: for a body, and for a stream."""
CHANGING = frozenset(
    "created created_at completed_at id item_id response_id request_id call_id timings "
    "input_tokens cache_read_input_tokens".split()
)
"""Keys whose values differ from run to run. Tokens read from the cache are among them:
the first event of a message is sent while its prompt is looked up."""
DIGITS = 6
"""Decimal digits recorded of logprobs: those that JSON's form does not change."""


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


def exchange(client: httpx.Client, path: str, body: Any) -> dict[str, object]:
    """Return status and body of a request, and the lines of its stream."""
    whole = client.post(path, json=body)
    stream = client.post(path, json=body | {"stream": True})
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
            found[name] = exchange(server.http, path, body)
        found["models"] = steady(server.http.get("/v1/models").json())
    return found
