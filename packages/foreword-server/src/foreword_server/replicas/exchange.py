"""Relays one request to a replica, and to another if that ends before the answer does.

A second replica gives the same text, so the client reads on where it was.
"""

import asyncio
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass, field
from time import monotonic
from typing import Any

from starlette.types import Send

from foreword_server.dialects.outlet import EVENTS, head_of
from foreword_server.errors import ApiError
from foreword_server.gate import TENANT
from foreword_server.replicas.charges import Charge, ends_process
from foreword_server.replicas.frames import MEDIA_TYPE, SENT, Frame, FrameReader, Sent
from foreword_server.replicas.pool import (
    Answered,
    Asked,
    Lost,
    Pool,
    Refused,
    Replica,
    Unreachable,
)
from foreword_server.wire import PING

ATTEMPTS = 3
"""Times that a request is given to replicas which lose it and do not end."""
CLEARED = 16
"""Rounds after which a request got past the point where it stood when its replica
ended: more than were computed and not yet sent.
"""
SILENT_SECONDS = 12.0
"""Seconds without a byte, after which the router pings the client of a stream: its
replica, which pings earlier, hangs, or another one is waited for.
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
FAULT = 500
"""Smallest status of an answer that failed by no fault of its request."""
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
    """Whether a replica lost it, so that another one went on."""
    _streams: bool = False
    """Whether events can be sent now."""
    _last: float = 0.0
    """monotonic() at the last byte."""
    _sent: Sent = field(default_factory=Sent)
    _charge: Charge = field(default_factory=Charge)

    async def run(self) -> None:
        """Send the answer. Raises ApiError if no replica gives it."""
        pings = asyncio.create_task(self._keep_alive())
        try:
            await self._run()
        finally:
            pings.cancel()

    async def _run(self) -> None:
        lost: list[Replica] = []
        failures = 0
        while failures < ATTEMPTS:
            replica = await self.pool.pick(self.blocks, lost, self._charge)
            self.log["replica"] = replica.name
            if lost:
                self.log["replicas"] = 1 + len(lost)
            try:
                died = await self._died(replica)
            except Unreachable:
                # not counted: it got nothing of the request
                await self.pool.change()
                continue
            if died is None:
                return
            lost.append(replica)
            if self._charge.guilty:
                raise ends_process()
            failures += not died
            self._check_resumes()
        raise _unfinished()

    async def _died(self, replica: Replica) -> bool | None:
        """Relay the answer of a replica. Return None when that is done, else whether
        the replica has ended; raises Unreachable.
        """
        counted = self.pool.running(replica, self.answers, self.blocks, self._charge)
        with counted:
            try:
                async with replica.ask(self._for_replica()) as answered:
                    await self._relay(replica, answered)
                return None
            except Unreachable:
                raise
            except Refused:
                died = False
            except Lost:
                self.continued = True
                died = await self.pool.died(replica, self._charge)
        if not died:
            replica.note(failed=True)
        return died

    def _check_resumes(self) -> None:
        """Raise ApiError if no other replica can go on with the text."""
        state = self._sent.state
        if state is not None and self._sent.rounds and not state.resumes:
            raise ApiError(
                500,
                "cannot finish this answer: its replica ended, and with this backend "
                "another one would go on with another text. Send the request again",
                code="answer_cannot_resume",
            )

    def _for_replica(self) -> Asked:
        """Return the request with what its client has of the answer."""
        request, prefix = self.asked, self._sent.encoded
        headers = [
            *passed_on(request.headers),
            (b"x-request-id", self.request_id.encode()),
            (TENANT.encode(), self.tenant.encode()),
        ]
        if request.method == "POST":
            size = str(len(prefix)).encode()
            headers.append((SENT.encode(), size))
        return Asked(
            request.method, request.target, headers, prefix + request.body, self.blocks
        )

    async def _relay(self, replica: Replica, answered: Answered) -> None:
        """Send a response on. Raises Lost if it ends early, and Refused if its replica
        takes no requests.
        """
        if answered.status == STOPPING and not self.begun:
            raise Refused
        kind = dict(answered.headers).get(b"content-type", b"")
        if kind == MEDIA_TYPE.encode():
            await self._relay_frames(replica, answered.pieces)
            return
        if answered.status >= FAULT:
            replica.note(failed=True)
        if self.begun:
            raise _unfinished()
        whole = [piece async for piece in answered.pieces]
        headers = passed_on(answered.headers)
        if self.asked.method == "HEAD":
            # the length of what GET would send
            headers += [one for one in answered.headers if one[0] == b"content-length"]
            await self._whole(answered.status, headers, None)
        else:
            await self._whole(answered.status, headers, b"".join(whole))

    async def _relay_frames(
        self, replica: Replica, pieces: AsyncIterator[bytes]
    ) -> None:
        reader = FrameReader()
        end: Frame | None = None
        rounds = 0
        try:
            async for piece in pieces:
                frames = []
                for frame in reader.push(piece):
                    if frame.kind in ("end", "whole"):
                        # held until the log is complete: a client that has it leaves
                        end = frame
                    else:
                        frames.append(frame)
                await self._take(frames)
                before, rounds = rounds, rounds + _rounds(frames)
                if before < CLEARED <= rounds:
                    self._charge.clear()
        except Lost:
            if end is None:
                raise
        if end is None:
            raise Lost
        replica.note(failed=end.about.get("status", 200) >= FAULT)
        if end.kind == "whole":
            json = [(b"content-type", b"application/json")]
            await self._whole(200, json, end.content)
            return
        await self._take([end])
        if self._streams:
            self._streams = False
            await self._body(b"", more=False)

    async def _take(self, frames: Sequence[Frame]) -> None:
        """Send what frames hold at once, then count them as sent: a router that is busy
        finds several frames in a piece.
        """
        for frame in frames:
            if frame.kind == "log":
                self.log |= frame.about
            elif frame.kind == "start" and not self.begun:
                self.begun = self._streams = True
                await self.send(head_of(EVENTS))
        content = b"".join(frame.content for frame in frames)
        if content:
            await self._body(content, more=True)
        for frame in frames:
            self._sent.add(frame)

    async def _keep_alive(self) -> None:
        """Ping the client of a stream after a long silence."""
        while True:
            await asyncio.sleep(1.0)
            if self._streams and monotonic() - self._last >= SILENT_SECONDS:
                await self._body(PING, more=True)

    async def _whole(self, status: int, headers: Headers, body: bytes | None) -> None:
        self.begun = True
        if body is not None:
            headers = [*headers, (b"content-length", str(len(body)).encode())]
        await self.send(
            {"type": "http.response.start", "status": status, "headers": headers}
        )
        await self._body(body or b"", more=False)

    async def _body(self, content: bytes, *, more: bool) -> None:
        self._last = monotonic()
        await self.send(
            {"type": "http.response.body", "body": content, "more_body": more}
        )


def _unfinished() -> ApiError:
    return ApiError(
        503,
        f"cannot finish this request: {ATTEMPTS} replicas lost it. Send it again",
        retry_after=5,
    )


def _rounds(frames: Sequence[Frame]) -> int:
    return sum(frame.kind == "round" for frame in frames)


def passed_on(headers: Headers) -> list[tuple[bytes, bytes]]:
    """Return the headers that concern the request, not its connection."""
    return [
        (name.lower(), value)
        for name, value in headers
        if name.lower() not in CONNECTION
    ]
