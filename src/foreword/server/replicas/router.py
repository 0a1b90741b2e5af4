"""Provides the server in front of replicas: limits, keys and the log are its own; the
rest of a request is a replica's.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass, field
from typing import Any

from starlette.requests import Request
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from foreword.errors import ForewordError
from foreword.server.batches.lines import ENDPOINTS
from foreword.server.body import items, read
from foreword.server.errors import MESSAGES, ApiError, as_api_error
from foreword.server.leaving import disconnected
from foreword.server.limits import MOST_ITEMS, Limits
from foreword.server.log import Log
from foreword.server.replicas.exchange import Exchange
from foreword.server.replicas.pool import Asked, Pool
from foreword.server.replicas.prefixes import blocks
from foreword.server.settings import Settings
from foreword.server.wire import Json, event

LARGE = 2**16
"""Bytes. Larger bodies are parsed in a thread, so that no other request waits."""


@dataclass(slots=True)
class Router:
    """Replicas behind one address."""

    settings: Settings
    pool: Pool
    name: str
    """Of the model."""
    log: Log
    limits: Limits
    draining: bool = False
    """Whether new requests are refused, as the server stops."""
    restarts: Callable[[], int] = int
    """Return how many replicas were started again."""
    continued: int = 0
    """Requests that went on at another replica."""
    stopped: asyncio.Event = field(default_factory=asyncio.Event)
    """Set when the time for draining is over."""

    def response(self, request: Request) -> Response:
        """Return the response of a replica to a request."""
        return _Routed(self, request)

    def stopping(self) -> ApiError:
        """Return the error of a request to a server that stops."""
        return ApiError(
            503,
            "cannot serve this request: the server stops. Send it to another",
            retry_after=5,
        )


class _Routed(Response):
    """The response of a replica, sent as it comes; a client that leaves ends it."""

    def __init__(self, router: Router, request: Request) -> None:
        super().__init__()
        self._router = router
        self._request = request
        self._exchange: Exchange | None = None

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer, until done or until the client leaves."""
        router = self._router
        try:
            body = await read(self._request)
            work = asyncio.create_task(self._answer(scope, body, send))
            gone = asyncio.create_task(disconnected(receive))
            stopped = asyncio.create_task(router.stopped.wait())
            tasks = (work, gone, stopped)
            try:
                await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
                left = not work.done()
                work.cancel()
                await asyncio.gather(work, return_exceptions=True)
                if left and stopped.done():
                    raise router.stopping()
                if not left:
                    work.result()
            finally:
                for task in tasks:
                    task.cancel()
        except ForewordError as error:
            await self._fail(as_api_error(error), scope, receive, send)

    async def _answer(self, scope: Scope, body: bytes, send: Send) -> None:
        router, state = self._router, scope["state"]
        if router.draining:
            raise router.stopping()
        path, method = scope["path"], scope["method"]
        query = scope.get("query_string", b"").decode("latin-1")
        generates = method == "POST" and path in ENDPOINTS
        asked = Asked(
            method,
            f"{path}?{query}" if query else path,
            scope["headers"],
            body,
        )
        self._exchange = exchange = Exchange(
            router.pool,
            asked,
            state["request_id"],
            state["tenant"],
            send,
            log=state.setdefault("log", {}),
        )
        place = nullcontext()
        if generates:
            exchange.answers = await answers_of(body)
            exchange.blocks = blocks(body, state["tenant"])
            place = router.limits.place(state["tenant"], exchange.answers)
        with place:
            await exchange.run()
        router.continued += exchange.continued

    async def _fail(
        self,
        failure: ApiError,
        scope: Scope,
        receive: Receive,
        send: Send,
    ) -> None:
        """Send an error in place of the answer, or as the last event of its stream."""
        path = scope["path"]
        body = failure.body(path, scope["state"]["request_id"])
        if self._exchange is None or not self._exchange.begun:
            answer = Json(body, failure.status, failure.headers)
            await answer(scope, receive, send)
            return
        name = "error" if path.startswith(MESSAGES) else None
        last = {"type": "http.response.body", "body": event(body, name)}
        await send(last)


async def answers_of(body: bytes) -> int:
    """Return how many answers a request asks for; 1 for a body that no replica
    reads.
    """
    if len(body) > LARGE:
        return await asyncio.to_thread(_answers_of, body)
    return _answers_of(body)


def _answers_of(body: bytes) -> int:
    if items(body) > MOST_ITEMS:
        return 1
    try:
        given: Any = json.loads(body)
    except (ValueError, RecursionError):
        return 1
    if not isinstance(given, dict):
        return 1
    each = given.get("n")
    prompts = given.get("prompt")
    several = (
        len(prompts)
        if isinstance(prompts, list) and prompts and isinstance(prompts[0], (str, list))
        else 1
    )
    counted = each if isinstance(each, int) and each > 0 else 1
    return several * counted
