"""Provides HTTP responses that are computed while they are sent; a client that leaves
ends the work.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import suppress
from time import monotonic
from typing import Any, Generic, TypeVar

from pydantic import BaseModel
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from foreword.api.requests import Requests
from foreword.server.answer import Answer, Call
from foreword.server.body import parsed
from foreword.server.dialects.base import Dialect
from foreword.server.errors import ApiError
from foreword.server.leaving import disconnected
from foreword.server.service import Service
from foreword.server.wire import Json

B = TypeVar("B", bound=BaseModel)
HEADERS = [
    (b"content-type", b"text/event-stream; charset=utf-8"),
    (b"cache-control", b"no-cache"),
    (b"x-accel-buffering", b"no"),  # nginx would collect events
]
PING_SECONDS = 10.0
"""Seconds. Longest silence of a stream: clients and proxies give up silent ones, and a
long prompt is read for minutes.
"""
PROGRESS_SECONDS = 0.5
"""Seconds between two looks at how much of the prompt is read."""


class Computed(Response, Generic[B]):
    """JSON that a thread of texts computes from a body.

    The work ends when the client leaves, or when the server has to stop; then the
    client reads an error.
    """

    def __init__(
        self,
        service: Service,
        body: bytes,
        kind: type[B],
        compute: Callable[[B, Requests], dict[str, Any]],
    ) -> None:
        super().__init__(media_type="application/json")
        self.service = service
        self._body = body
        self._kind = kind
        self._compute = compute

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Compute and send, until done or until the client leaves."""
        work = asyncio.create_task(self._guarded(scope, receive, send))
        gone = asyncio.create_task(disconnected(receive))
        stopped = asyncio.create_task(self.service.stopped.wait())
        try:
            await asyncio.wait(
                (work, gone, stopped), return_when=asyncio.FIRST_COMPLETED
            )
            left = not work.done()
            work.cancel()
            with suppress(asyncio.CancelledError):
                await work
            if left and gone.done():
                self.service.metrics.left()
            elif left:
                await self.fail(self.service.stopping(), scope, receive, send)
        finally:
            for task in (work, gone, stopped):
                task.cancel()

    async def _guarded(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await self.serve(scope, receive, send)
        except Exception as error:  # noqa: BLE001 - every error has its shape
            failure = self.service.reported(error, scope["state"]["request_id"])
            await self.fail(failure, scope, receive, send)

    async def serve(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Compute the response and send it."""
        result = await self.in_texts(scope, self._compute)
        await Json(result)(scope, receive, send)

    async def in_texts(
        self, scope: Scope, function: Callable[[B, Requests], Any]
    ) -> Any:
        """Return what a function makes of the body, in a thread of texts."""
        if self.service.draining:
            raise self.service.stopping()
        body = self._body

        def read(requests: Requests) -> Any:
            return function(parsed(body, self._kind), requests)

        self._body = b""  # an answer may take minutes, and needs its body no more
        return await self.service.texts.run(scope["state"]["tenant"], len(body), read)

    async def fail(
        self, failure: ApiError, scope: Scope, receive: Receive, send: Send
    ) -> None:
        """Send an error in place of the response."""
        body = failure.body(scope["path"], scope["state"]["request_id"])
        await Json(body, failure.status, failure.headers)(scope, receive, send)


class Reply(Computed[B]):
    """An answer that is generated while it is sent, whole or as server-sent events."""

    def __init__(
        self,
        service: Service,
        body: bytes,
        kind: type[B],
        translate: Callable[[B, Requests], tuple[Call, Dialect]],
    ) -> None:
        """`translate` returns the call of a body, and what writes its answer."""
        super().__init__(service, body, kind, lambda *_: {})
        self._translate = translate
        self._dialect: Dialect | None = None
        """What writes the events, once a stream has begun."""

    async def serve(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Generate the answer and send it."""
        call, dialect = await self.in_texts(scope, self._translate)
        async with self.service.answer(call, scope["state"]) as answer:
            if call.stream:
                self._dialect = dialect
                await EventStream(answer, dialect, send).run()
                return
            async for _ in answer:
                pass
            body = dialect.whole(answer)
        await Json(body)(scope, receive, send)

    async def fail(
        self, failure: ApiError, scope: Scope, receive: Receive, send: Send
    ) -> None:
        """Send an error in place of the answer, or as the last event of its stream."""
        if self._dialect is None:
            await super().fail(failure, scope, receive, send)
        else:
            await send(
                {"type": "http.response.body", "body": self._dialect.failed(failure)}
            )


class EventStream:
    """The events of one answer, on the way to its client."""

    def __init__(self, answer: Answer, dialect: Dialect, send: Send) -> None:
        self._answer = answer
        self._dialect = dialect
        self._send = send
        self._sent = monotonic()

    async def run(self) -> None:
        """Send all events, from the head to the end."""
        head = {"type": "http.response.start", "status": 200, "headers": HEADERS}
        await self._send(head)
        await self._write(self._dialect.start(self._answer))
        alive = asyncio.create_task(self._keep_alive())
        try:
            async for choice, events, delta in self._answer:
                await self._write(self._dialect.push(choice, events, delta))
        finally:
            alive.cancel()
        await self._write(self._dialect.end(self._answer))
        await self._send({"type": "http.response.body", "body": b""})

    async def _keep_alive(self) -> None:
        """Send how much of the prompt is read, to clients that ask, and else a ping
        after a long silence.
        """
        while True:
            await asyncio.sleep(min(PROGRESS_SECONDS, PING_SECONDS))
            chunk = self._dialect.progress(self._answer)
            if not chunk and monotonic() - self._sent >= PING_SECONDS:
                chunk = self._dialect.ping()
            await self._write(chunk)

    async def _write(self, chunk: bytes) -> None:
        if not chunk:
            return
        self._sent = monotonic()
        await self._send(
            {"type": "http.response.body", "body": chunk, "more_body": True}
        )
