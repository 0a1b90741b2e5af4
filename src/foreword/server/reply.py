"""Provides the HTTP response of an answer, whole or as server-sent events; a client that leaves ends its answer."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import Any, Protocol, runtime_checkable

from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from foreword.server.answer import Answer, Call, Choice, Shown
from foreword.server.errors import ApiError
from foreword.server.service import Service
from foreword.server.wire import Json
from foreword.types import Delta


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


class Reply(Response):
    """A response that generates its answer while it is sent."""

    def __init__(self, service: Service, call: Call, dialect: Dialect) -> None:
        super().__init__(media_type="text/event-stream" if call.stream else "application/json")
        self._service, self._call, self._dialect = service, call, dialect
        self._streaming = False

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Generate and send, until done or until the client leaves."""
        work = asyncio.create_task(self._serve(scope, receive, send))
        gone = asyncio.create_task(_disconnected(receive))
        try:
            await asyncio.wait((work, gone), return_when=asyncio.FIRST_COMPLETED)
            if not work.done():
                self._service.metrics.left()
                work.cancel()
            with suppress(asyncio.CancelledError):
                await work
        finally:
            work.cancel()
            gone.cancel()

    async def _serve(self, scope: Scope, receive: Receive, send: Send) -> None:
        state = scope["state"]
        try:
            async with self._service.answer(self._call, state) as answer:
                if self._call.stream:
                    await self._stream(answer, send)
                    return
                async for _ in answer:
                    pass
                body = self._dialect.whole(answer)
            await Json(body)(scope, receive, send)
        except Exception as error:  # noqa: BLE001 - every error has its shape
            failure = self._service.reported(error, state["request_id"])
            if self._streaming:
                await send({"type": "http.response.body", "body": self._dialect.failed(failure)})
                return
            body = failure.body(scope["path"], state["request_id"])
            await Json(body, failure.status, failure.headers)(scope, receive, send)

    async def _stream(self, answer: Answer, send: Send) -> None:
        headers = [
            (b"content-type", b"text/event-stream; charset=utf-8"),
            (b"cache-control", b"no-cache"),
            (b"x-accel-buffering", b"no"),  # nginx would collect events
        ]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        self._streaming = True
        await send({"type": "http.response.body", "body": self._dialect.start(answer), "more_body": True})
        async for choice, events, delta in answer:
            if chunk := self._dialect.push(choice, events, delta):
                await send({"type": "http.response.body", "body": chunk, "more_body": True})
        await send({"type": "http.response.body", "body": self._dialect.end(answer), "more_body": True})
        await send({"type": "http.response.body", "body": b""})


async def _disconnected(receive: Receive) -> None:
    """Return when the client has left."""
    while (await receive())["type"] != "http.disconnect":
        pass
