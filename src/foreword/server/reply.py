"""Provides HTTP responses that are computed while they are sent; a client that leaves
ends the work.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import suppress
from typing import Any, Generic, Protocol, TypeVar, runtime_checkable

from pydantic import BaseModel
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from foreword.api.requests import Requests
from foreword.server.answer import Answer, Call, Choice, Shown
from foreword.server.body import parsed
from foreword.server.errors import ApiError
from foreword.server.leaving import disconnected
from foreword.server.service import Service
from foreword.server.wire import Json
from foreword.types import Delta

B = TypeVar("B", bound=BaseModel)
HEADERS = [
    (b"content-type", b"text/event-stream; charset=utf-8"),
    (b"cache-control", b"no-cache"),
    (b"x-accel-buffering", b"no"),  # nginx would collect events
]


@runtime_checkable
class Dialect(Protocol):
    """How one answer is written in one API."""

    def whole(self, answer: Answer) -> dict[str, Any]:
        """Return the body of a complete answer."""
        ...

    def start(self, answer: Answer) -> bytes:
        """Return the first events of a stream."""
        ...

    def push(self, choice: Choice, events: list[Shown], delta: Delta) -> bytes:
        """Return the events of one delta."""
        ...

    def end(self, answer: Answer) -> bytes:
        """Return the last events of a stream."""
        ...

    def failed(self, error: ApiError) -> bytes:
        """Return the event that ends a stream after an error."""
        ...


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
                await self._stream(answer, dialect, send)
                return
            async for _ in answer:
                pass
            body = dialect.whole(answer)
        await Json(body)(scope, receive, send)

    async def _stream(self, answer: Answer, dialect: Dialect, send: Send) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": HEADERS})
        self._dialect = dialect
        await send(
            {
                "type": "http.response.body",
                "body": dialect.start(answer),
                "more_body": True,
            }
        )
        async for choice, events, delta in answer:
            if chunk := dialect.push(choice, events, delta):
                await send(
                    {"type": "http.response.body", "body": chunk, "more_body": True}
                )
        await send(
            {
                "type": "http.response.body",
                "body": dialect.end(answer),
                "more_body": True,
            }
        )
        await send({"type": "http.response.body", "body": b""})

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
