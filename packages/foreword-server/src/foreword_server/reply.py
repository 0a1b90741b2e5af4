"""HTTP responses computed while they are sent; a client that leaves ends the work."""

import asyncio
import secrets
from collections.abc import Callable
from dataclasses import asdict, replace
from math import inf
from time import monotonic
from typing import Any, Generic, TypeVar

from pydantic import BaseModel
from starlette.datastructures import Headers
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from foreword.api.requests import SEEDS, Requests
from foreword_server.answer import Answer, Call
from foreword_server.body import parsed
from foreword_server.dialects.base import Dialect
from foreword_server.dialects.ids import Ids
from foreword_server.dialects.outlet import Outlet
from foreword_server.errors import ApiError, refused, stopping
from foreword_server.leaving import first_end
from foreword_server.limits import MOST_ITEMS
from foreword_server.replicas.frames import (
    MEDIA_TYPE,
    SENT,
    Frame,
    Sent,
    State,
    sent_of,
)
from foreword_server.service import Service
from foreword_server.wire import PING_SECONDS, Json, json_bytes


class FrameOutlet(Outlet):
    """The way to a router: frames, from the first that its client lacks."""

    kind = MEDIA_TYPE

    def __init__(self, exchange: tuple[Scope, Receive, Send], sent: Sent) -> None:
        super().__init__(*exchange)
        self.sent = sent
        self.ids = Ids(sent.state.salt if sent.state else "")
        self._skipped = sent.frames

    def pinned(self, call: Call) -> Call:
        """Return the call with the seed that every replica uses."""
        known, seed = self.sent.state, call.params.seed
        if known is not None:
            seed = known.seed
        if seed is None:
            seed = secrets.randbelow(SEEDS)
        params = replace(call.params, seed=seed)
        return replace(call, params=params)

    def state(self, answer: Answer) -> dict[str, Any]:
        """Return what another replica would have to know of an answer."""
        seed = answer.call.params.seed or 0
        return asdict(State(self.ids.salt, seed, answer.created, answer.resumes))

    async def write(self, frame: Frame) -> bool:
        """Send a frame that the client does not have."""
        if self._skipped and frame.kind != "end":
            self._skipped -= frame.kind in ("start", "round")
            return False
        await self.body(frame.encoded)
        return True

    async def whole(self, body: dict[str, Any]) -> None:
        """Send an answer that is not streamed."""
        await self.begin()
        await self.body(Frame("whole", json_bytes(body)).encoded)

    async def close(self, log: dict[str, Any]) -> None:
        """Send the counts for the log, and end."""
        await self.body(Frame("log", about=log).encoded)
        await super().close(log)


B = TypeVar("B", bound=BaseModel)
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
        work = self._guarded(scope, receive, send)
        end = await first_end(work, receive, self.service.stopped)
        if end == "left":
            self.service.metrics.left()
        elif end == "stopped":
            await self.fail(stopping(), scope, receive, send)

    async def _guarded(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await self.serve(scope, receive, send)
        except Exception as error:  # noqa: BLE001 - every error has its shape
            request_id = scope["state"]["request_id"]
            failure = self.service.reported(error, request_id)
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
            raise stopping()
        body = self._body

        def read(requests: Requests) -> Any:
            return function(parsed(body, self._kind), requests)

        self._body = b""  # an answer may take minutes, and needs its body no more
        tenant = scope["state"]["tenant"]
        return await self.service.texts.run(tenant, len(body), read)

    async def fail(
        self, failure: ApiError, scope: Scope, receive: Receive, send: Send
    ) -> None:
        """Send an error in place of the response."""
        await refused(failure, scope)(scope, receive, send)


class Reply(Computed[B]):
    """An answer that is generated while it is sent, whole or as server-sent events."""

    def __init__(
        self,
        service: Service,
        body: bytes,
        kind: type[B],
        translate: Callable[[B, Requests, Ids], tuple[Call, Dialect]],
    ) -> None:
        """`translate` returns the call of a body, and what writes its answer."""
        super().__init__(service, body, kind, lambda *_: {})
        self._translate = translate
        self._stream: EventStream | None = None
        """The events, once a stream has begun."""

    async def serve(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Generate the answer and send it."""
        outlet = self._outlet(scope, receive, send)

        def translate(body: B, requests: Requests) -> tuple[Call, Dialect]:
            return self._translate(body, requests, outlet.ids)

        call, dialect = await self.in_texts(scope, translate)
        call = outlet.pinned(call)
        body: dict[str, Any] | None = None
        state = scope["state"]
        async with self.service.answer(call, state, outlet.sent) as answer:
            if call.stream:
                self._stream = EventStream(answer, dialect, outlet)
                await self._stream.run()
            else:
                async for _ in answer:
                    pass
                body = dialect.whole(answer)
        if body is not None:
            await outlet.whole(body)
        await outlet.close(state.get("log", {}))

    def _outlet(self, scope: Scope, receive: Receive, send: Send) -> Outlet:
        """Return the way of the answer: to a router if one asks, else to the client."""
        size = Headers(scope=scope).get(SENT)
        settings = self.service.settings
        if size is None or not settings.resume:
            return Outlet(scope, receive, send)
        limit = inf if settings.routed else MOST_ITEMS
        sent, self._body = sent_of(size, self._body, limit)
        return FrameOutlet((scope, receive, send), sent)

    async def fail(
        self, failure: ApiError, scope: Scope, receive: Receive, send: Send
    ) -> None:
        """Send an error in place of the answer, or as the last event of its stream."""
        if self._stream is None:
            await super().fail(failure, scope, receive, send)
        else:
            await self._stream.fail(failure)


class EventStream:
    """The events of one answer, on the way to its client."""

    def __init__(self, answer: Answer, dialect: Dialect, outlet: Outlet) -> None:
        self._answer = answer
        self._dialect = dialect
        self._outlet = outlet
        self._sent = monotonic()

    async def run(self) -> None:
        """Send all events, from the head to the end."""
        answer, dialect = self._answer, self._dialect
        await self._outlet.begin()
        state = self._outlet.state(answer)
        await self._write(Frame("start", dialect.start(answer), state))
        alive = asyncio.create_task(self._keep_alive())
        try:
            async for choice, events, delta in answer:
                about: dict[str, Any] = {"choice": choice.index, "tokens": delta.tokens}
                if delta.round is not None:
                    about["trace"] = delta.round.as_json()
                written = dialect.push(choice, events, delta)
                await self._write(Frame("round", written, about))
        finally:
            alive.cancel()
        await self._write(Frame("end", dialect.end(answer)))

    async def fail(self, failure: ApiError) -> None:
        """Send the error that ends the stream."""
        about = {"status": failure.status}
        await self._write(Frame("end", self._dialect.failed(failure), about))
        await self._outlet.close({})

    async def _keep_alive(self) -> None:
        """Send how much of the prompt is read, to clients that ask, and else a ping
        after a long silence.
        """
        while True:
            await asyncio.sleep(min(PROGRESS_SECONDS, PING_SECONDS))
            chunk = self._dialect.progress(self._answer)
            if not chunk and monotonic() - self._sent >= PING_SECONDS:
                chunk = self._dialect.ping()
            if chunk:
                await self._write(Frame("more", chunk))

    async def _write(self, frame: Frame) -> None:
        if await self._outlet.write(frame):
            self._sent = monotonic()
