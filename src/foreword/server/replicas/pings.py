"""Keeps the stream of a client open while it waits for a model."""

from __future__ import annotations

from dataclasses import dataclass
from http import HTTPStatus

from starlette.types import Message, Send

from foreword.server.dialects.outlet import EVENTS, head_of
from foreword.server.wire import PING


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
