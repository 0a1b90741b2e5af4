"""A proxy before the server: the model calls the tools of a script; all is kept."""

import http.client
import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from serving import Quiet, started

MOST_TOKENS = 400
"""Tokens of an answer: random weights may never end one."""
ANSWERED = ("/v1/chat/completions", "/v1/messages", "/v1/responses")
"""Paths at which the model answers."""
LIMITS = ("max_tokens", "max_completion_tokens", "max_output_tokens")
HOPS = ("connection", "transfer-encoding", "content-length", "host", "accept-encoding")
"""Headers of one connection alone; without the last, answers are plain text."""
LAST = "The note is read."
"""What the model answers after the script."""


@dataclass(frozen=True)
class Call:
    """A call that the model is made to make: a tool, and its arguments."""

    tool: str
    arguments: dict[str, str]

    @property
    def schema(self) -> dict[str, Any]:
        """Return a schema that these arguments alone follow."""
        each = {name: {"enum": [value]} for name, value in self.arguments.items()}
        return {
            "type": "object",
            "properties": each,
            "required": list(each),
            "additionalProperties": False,
        }


@dataclass
class Proxy:
    """What the proxy does with requests, and what it has seen."""

    upstream: str
    """The server's address."""
    script: Sequence[Call] | None
    """Without one, the model chooses."""
    url: str = ""
    """Address of the proxy."""
    turns: list[dict[str, Any]] = field(default_factory=list)
    """Bodies that offer the tools of the script, as the agent sent them."""
    statuses: list[tuple[str, int]] = field(default_factory=list)
    """Path and status of every request."""

    def directed(self, body: dict[str, Any]) -> dict[str, Any]:
        """Return a body that calls the script's next tool; titles call none."""
        if self.script is None:
            self.turns.append(body)
            return body
        offered = {name_of(tool) for tool in body.get("tools") or ()}
        if not offered.issuperset(call.tool for call in self.script):
            return bounded(body)
        self.turns.append(body)
        place = len(self.turns) - 1
        if place < len(self.script):
            return forced(bounded(body), self.script[place])
        return worded(bounded(body))


def name_of(tool: dict[str, Any]) -> Any:
    """Return the name of a tool in any of the three APIs."""
    return tool.get("function", tool).get("name")


def bounded(body: dict[str, Any]) -> dict[str, Any]:
    """Return a body whose answer is short."""
    given = [name for name in LIMITS if body.get(name)]
    name = given[0] if given else "max_output_tokens" if "input" in body else LIMITS[0]
    return {**body, name: MOST_TOKENS}


def forced(body: dict[str, Any], call: Call) -> dict[str, Any]:
    """Return a body that makes the model call one tool with these arguments."""
    tools = json.loads(json.dumps(body["tools"]))
    tool = next(one for one in tools if name_of(one) == call.tool)
    if "input_schema" in tool:
        tool |= {"input_schema": call.schema, "strict": True}
        chosen: dict[str, Any] = {"type": "tool", "name": call.tool}
    elif "function" in tool:
        tool["function"] |= {"parameters": call.schema, "strict": True}
        chosen = {"type": "function", "function": {"name": call.tool}}
    else:
        tool |= {"parameters": call.schema, "strict": True}
        chosen = {"type": "function", "name": call.tool}
    return {**body, "tools": tools, "tool_choice": chosen}


def worded(body: dict[str, Any]) -> dict[str, Any]:
    """Return a body that makes the model say the last words."""
    anthropic = any("input_schema" in tool for tool in body["tools"])
    none: Any = {"type": "none"} if anthropic else "none"
    return {**body, "tool_choice": none, "guided_choice": [LAST]}


@contextmanager
def between(upstream: str, script: Sequence[Call] | None) -> Iterator[Proxy]:
    """Run a proxy in a thread."""
    proxy = Proxy(upstream, script)
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler(proxy))
    server.daemon_threads = False  # closing waits for them
    with started(server) as proxy.url:
        yield proxy


def handler(proxy: Proxy) -> type[BaseHTTPRequestHandler]:
    """Return the class that passes one connection's requests on."""

    class Handler(Quiet, BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.passed(b"")

        def do_HEAD(self) -> None:
            self.passed(b"")

        def do_POST(self) -> None:
            sent = self.rfile.read(int(self.headers["content-length"]))
            if self.path.partition("?")[0] in ANSWERED:
                sent = json.dumps(proxy.directed(json.loads(sent))).encode()
            self.passed(sent)

        def passed(self, sent: bytes) -> None:
            """Pass the request and its answer on, piece by piece."""
            host = proxy.upstream.removeprefix("http://")
            upstream = http.client.HTTPConnection(host)
            kept = {
                name: value
                for name, value in self.headers.items()
                if name.lower() not in HOPS
            }
            upstream.request(self.command, self.path, sent or None, kept)
            answer = upstream.getresponse()
            proxy.statuses.append((self.path, answer.status))
            self.send_response(answer.status)
            for name, value in answer.getheaders():
                if name.lower() not in HOPS:
                    self.send_header(name, value)
            self.end_headers()  # HTTP/1.0: the answer ends with the connection
            while piece := answer.read1(65_536):
                self.wfile.write(piece)
            upstream.close()

    return Handler
