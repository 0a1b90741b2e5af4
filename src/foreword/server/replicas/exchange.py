"""Provides the way of one request: to a replica, and to another one if that ends before
the answer does.

A second replica gives the same text, so the client reads on where it was.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass, field
from typing import Any, NoReturn

from starlette.types import Send

from foreword.server.dialects.outlet import EVENTS, head_of
from foreword.server.errors import ApiError
from foreword.server.gate import TENANT
from foreword.server.replicas.frames import MEDIA_TYPE, SENT, Frame, FrameReader, Sent
from foreword.server.replicas.pool import (
    Answered,
    Asked,
    Lost,
    Pool,
    Replica,
    Unreachable,
)

ATTEMPTS = 3
"""Replicas that a request is given to. One that ends each of them is not given to all.
"""
CONNECTION = frozenset(
    {
        b"connection",
        b"content-length",
        b"date",
        b"expect",
        b"keep-alive",
        b"server",
        b"te",
        b"trailer",
        b"transfer-encoding",
        b"upgrade",
        b"x-request-id",
        SENT.encode(),
        TENANT.encode(),
    }
)
"""Headers of one connection, and headers that the router sets."""
STOPPING = 503
"""Status of a replica that takes no requests."""
Headers = Sequence[tuple[bytes, bytes]]


@dataclass(slots=True)
class Exchange:
    """One request and its answer."""

    pool: Pool
    asked: Asked
    request_id: str
    tenant: str
    send: Send
    answers: int = 1
    blocks: Sequence[bytes] = ()
    log: dict[str, Any] = field(default_factory=dict)
    """What the log says of the request."""
    begun: bool = False
    """Whether the client has the head of the response."""
    continued: bool = False
    """Whether another replica went on with it."""
    _sent: Sent = field(default_factory=Sent)

    async def run(self) -> None:
        """Send the answer. Raises ApiError if no replica gives it."""
        lost: list[Replica] = []
        while len(lost) < ATTEMPTS:
            replica = await self.pool.pick(self.blocks, lost)
            self.log["replica"] = replica.name
            if lost:
                self.continued = True
                self.log["replicas"] = 1 + len(lost)
            try:
                with replica.busy(self.answers, self.blocks):
                    async with replica.engine.ask(self._for_replica()) as answered:
                        last = len(lost) + 1 == ATTEMPTS
                        await self._relay(answered, last=last)
                return
            except Unreachable:
                # not counted: it got nothing of the request
                await self.pool.change()
            except Lost:
                lost.append(replica)
        self._fail()

    def _for_replica(self) -> Asked:
        """Return the request with what its client has of the answer."""
        asked, prefix = self.asked, self._sent.encoded
        headers = [
            *passed_on(asked.headers),
            (b"x-request-id", self.request_id.encode()),
            (TENANT.encode(), self.tenant.encode()),
        ]
        if asked.method == "POST":
            size = str(len(prefix)).encode()
            headers.append((SENT.encode(), size))
        return Asked(
            asked.method,
            asked.target,
            headers,
            prefix + asked.body,
            self.blocks,
        )

    async def _relay(self, answered: Answered, *, last: bool) -> None:
        """Send a response on. Raises Lost if it ends early, or if its replica takes no
        requests, unless this is the last attempt.
        """
        if answered.status == STOPPING and not self.begun and not last:
            raise Lost
        kind = dict(answered.headers).get(b"content-type", b"")
        if kind == MEDIA_TYPE.encode():
            await self._relay_frames(answered.pieces)
            return
        if self.begun:
            self._fail()
        whole = [piece async for piece in answered.pieces]
        await self._whole(
            answered.status,
            passed_on(answered.headers),
            b"".join(whole),
        )

    async def _relay_frames(self, pieces: AsyncIterator[bytes]) -> None:
        reader = FrameReader()
        end: Frame | None = None
        try:
            async for piece in pieces:
                for frame in reader.push(piece):
                    if frame.kind in ("end", "whole"):
                        # held until the log is complete: a client that has it leaves
                        end = frame
                    else:
                        await self._take(frame)
        except Lost:
            if end is None:
                raise
        if end is None:
            raise Lost
        await self._take(end)
        if self._sent.state is not None:
            await self._body(b"", more=False)

    async def _take(self, frame: Frame) -> None:
        """Send what a frame holds, then count it as sent."""
        if frame.kind == "log":
            self.log |= frame.about
            return
        if frame.kind == "whole":
            json = [(b"content-type", b"application/json")]
            await self._whole(200, json, frame.content)
            return
        if frame.kind == "start" and not self.begun:
            self.begun = True
            await self.send(head_of(EVENTS))
        if frame.content:
            await self._body(frame.content, more=True)
        self._sent.add(frame)

    async def _whole(self, status: int, headers: Headers, body: bytes) -> None:
        self.begun = True
        length = (b"content-length", str(len(body)).encode())
        await self.send(
            {
                "type": "http.response.start",
                "status": status,
                "headers": [*headers, length],
            }
        )
        await self._body(body, more=False)

    async def _body(self, content: bytes, *, more: bool) -> None:
        await self.send(
            {
                "type": "http.response.body",
                "body": content,
                "more_body": more,
            }
        )

    def _fail(self) -> NoReturn:
        raise ApiError(
            503,
            f"cannot finish this request: {ATTEMPTS} replicas ended before its answer "
            "did. Send it again",
            retry_after=5,
        )


def passed_on(headers: Headers) -> list[tuple[bytes, bytes]]:
    """Return the headers that concern the request, not its connection."""
    return [
        (name.lower(), value)
        for name, value in headers
        if name.lower() not in CONNECTION
    ]
