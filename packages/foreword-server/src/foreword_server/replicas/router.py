"""Server in front of replicas: it keeps limits, keys and log; replicas do the rest."""

import asyncio
import json
import re
from contextlib import nullcontext
from dataclasses import dataclass
from http import HTTPStatus
from typing import Any

from starlette.requests import Request
from starlette.responses import Response
from starlette.types import Message, Receive, Scope, Send

from foreword_server.body import items, read
from foreword_server.dialects.outlet import EVENTS, head_of
from foreword_server.errors import ApiError, refused, stopping
from foreword_server.front import Front
from foreword_server.leaving import first_end
from foreword_server.limits import MOST_ITEMS
from foreword_server.replicas.exchange import Exchange
from foreword_server.replicas.models import DEFAULT, Models, no_ping
from foreword_server.replicas.pool import Asked
from foreword_server.replicas.prefixes import blocks
from foreword_server.routes import Decision
from foreword_server.wire import DONE, PING, event

LARGE = 2**16
"""Bytes. Larger bodies are parsed in a thread, so that no other request waits."""
FORM_MODEL = re.compile(rb'name="model"\r\n\r\n([^\r\n]{1,256})\r\n')
"""The field of a form that names a model."""


@dataclass(slots=True, eq=False)
class Router(Front):
    """Replicas behind one address; one that fails is started again."""

    models: Models
    continued: int = 0
    """Requests that went on at another replica."""

    def drain(self) -> None:
        """Refuse new requests: the server stops."""
        self.draining = True
        self.models.drain()


class Routed(Response):
    """The response of a replica, sent as it comes; a client that leaves ends it."""

    def __init__(self, router: Router, http_request: Request) -> None:
        super().__init__()
        self._router = router
        self._request = http_request
        self._exchange: Exchange | None = None

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer, until done or until the client leaves."""
        router = self._router
        decision: Decision = scope["state"]["decision"]
        anthropic = decision.route.anthropic
        send = pings = Pings(send, b"event: error\n" if anthropic else b"")
        try:
            body = await read(self._request) if decision.route.body else b""
            work = self._answer(scope, body, pings)
            end = await first_end(work, receive, router.stopped)
            if end == "stopped":
                raise stopping()
        except Exception as error:  # noqa: BLE001 - every error has its shape
            failure = router.reported(error, scope["state"]["request_id"])
            await self._fail(failure, scope, receive, send)

    async def _answer(self, scope: Scope, body: bytes, pings: "Pings") -> None:
        router, state = self._router, scope["state"]
        if router.draining:
            raise stopping()
        decision: Decision = state["decision"]
        route = decision.route
        request = Asked(scope["method"], decision.target, scope["headers"], body)
        demand = await wanted_by(body) if body else Wanted()
        slot = nullcontext()
        name, beginnings = demand.model, []
        if route.generates:
            name = name or DEFAULT
            slot = router.limits.place(state["tenant"], demand.answers)
        if route.operation:
            beginnings = blocks(body, f"{state['tenant']}/{name}")
        ping = pings.ping if route.generates and demand.stream else no_ping
        # a request that waits for a load takes no place from requests for other models
        async with router.models.lease(name, load=route.loads, ping=ping) as pool:
            with slot:
                self._exchange = exchange = Exchange(
                    pool,
                    request,
                    state["request_id"],
                    state["tenant"],
                    pings,
                    demand.answers,
                    beginnings,
                    state.setdefault("log", {}),
                )
                try:
                    await exchange.run()
                finally:
                    router.continued += exchange.continued

    async def _fail(
        self, failure: ApiError, scope: Scope, receive: Receive, send: Send
    ) -> None:
        """Send an error in place of the answer, or as the last event of its stream."""
        if self._exchange is None or not self._exchange.begun:
            await refused(failure, scope)(scope, receive, send)
            return
        route = scope["state"]["decision"].route
        body = failure.body(
            anthropic=route.anthropic, request_id=scope["state"]["request_id"]
        )
        last = event(body, "error" if route.anthropic else None)
        last += DONE if route.done else b""
        await send({"type": "http.response.body", "body": last})


@dataclass(frozen=True, slots=True)
class Wanted:
    """What a router has to know of a body."""

    model: str | None = None
    answers: int = 1
    stream: bool = False


async def wanted_by(body: bytes) -> Wanted:
    """Return what a body asks for; nothing where a replica will refuse it."""
    if len(body) > LARGE:
        return await asyncio.to_thread(_wanted_by, body)
    return _wanted_by(body)


def _wanted_by(body: bytes) -> Wanted:
    if body.lstrip()[:1] != b"{":
        named = FORM_MODEL.search(body)
        return Wanted(named[1].decode("utf-8", "replace")) if named else Wanted()
    if items(body) > MOST_ITEMS:
        return Wanted()
    try:
        values: Any = json.loads(body)
    except (ValueError, RecursionError):
        return Wanted()
    model = values.get("model")
    return Wanted(
        model if isinstance(model, str) and model else None,
        _prompts(values.get("prompt")) * _each(values.get("n")),
        values.get("stream") is True,
    )


def _prompts(value: Any) -> int:
    """Return the number of prompts; a list of token ids is one."""
    several = isinstance(value, list) and value and isinstance(value[0], str | list)
    return len(value) if several else 1


def _each(value: Any) -> int:
    """Return the answers to each prompt."""
    return value if isinstance(value, int) and value > 0 else 1


@dataclass(slots=True)
class Pings:
    """The way to a client that may read pings before its answer. Then the head is sent,
    and an error becomes an event.
    """

    send: Send
    error: bytes
    """What begins the event of an error."""
    _opened: bool = False
    _failed: bool = False

    async def ping(self) -> None:
        """Show that the server lives."""
        if not self._opened:
            self._opened = True
            await self.send(head_of(EVENTS))
        await self.send({"type": "http.response.body", "body": PING, "more_body": True})

    async def __call__(self, message: Message) -> None:
        """Send a part of the answer."""
        if self._opened and message["type"] == "http.response.start":
            self._failed = message["status"] != HTTPStatus.OK
            return
        if self._failed and message.get("body"):
            content = self.error + b"data: " + message["body"] + b"\n\n"
            message = {**message, "body": content}
        await self.send(message)
