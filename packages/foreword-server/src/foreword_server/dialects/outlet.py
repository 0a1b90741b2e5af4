"""Sends an answer to a client, streamed or whole."""

from typing import Any

from starlette.types import Receive, Scope, Send

from foreword_server.answer import Answer, Call
from foreword_server.dialects.ids import Ids
from foreword_server.replicas.frames import Frame, Sent
from foreword_server.wire import Json

EVENTS = "text/event-stream; charset=utf-8"


def head_of(kind: str) -> dict[str, Any]:
    """Return the message that begins a stream of this content type."""
    headers = [
        (b"content-type", kind.encode()),
        (b"cache-control", b"no-cache"),
        (b"x-accel-buffering", b"no"),  # nginx would collect events
    ]
    return {"type": "http.response.start", "status": 200, "headers": headers}


class Outlet:
    """The way to a client: the bytes of frames, one after the other."""

    kind = EVENTS
    """Content type of what is sent."""

    def __init__(self, scope: Scope, receive: Receive, send: Send) -> None:
        self._exchange = scope, receive, send
        self._send = send
        self._open = False
        self.sent = Sent()
        self.ids = Ids()

    def pinned(self, call: Call) -> Call:
        """Return the call as it is made."""
        return call

    def state(self, answer: Answer) -> dict[str, Any]:
        """Return what another replica would have to know of an answer."""
        return {}

    async def begin(self) -> None:
        """Send the head of a stream."""
        self._open = True
        await self._send(head_of(self.kind))

    async def write(self, frame: Frame) -> bool:
        """Send a frame; return whether it held anything for the client."""
        if frame.content:
            await self.body(frame.content)
        return bool(frame.content)

    async def whole(self, body: dict[str, Any]) -> None:
        """Send an answer that is not streamed."""
        await Json(body)(*self._exchange)

    async def close(self, log: dict[str, Any]) -> None:
        """End the answer; `log`: its counts for the log."""
        if self._open:
            await self.body(b"", more=False)

    async def body(self, content: bytes, *, more: bool = True) -> None:
        """Send bytes."""
        await self._send(
            {"type": "http.response.body", "body": content, "more_body": more}
        )
