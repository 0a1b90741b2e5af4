"""Calls an ASGI application without a connection, and yields its response in pieces."""

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping
from time import monotonic
from types import MappingProxyType
from typing import Any
from urllib.parse import unquote

from starlette.types import ASGIApp, Message, Scope

from foreword_server.replicas.pool import Asked

Head = tuple[int, list[tuple[bytes, bytes]]]
"""Status and headers of a response."""
WAITING = 64
"""Pieces that wait to be read; then the application waits."""


async def called(
    app: ASGIApp,
    request: Asked,
    apart: Callable[[], float] = float,
    state: Mapping[str, Any] = MappingProxyType({}),
) -> AsyncIterator[Head | bytes]:
    """Yield the head of a response, then its body in pieces. Closing the generator
    leaves, as a client does.

    `apart`: seconds from a piece to the next, which holds all that came since. `state`:
    what a gate would have added to the scope.
    """
    call = _Call(request.body)
    task = asyncio.create_task(call.run(app, scope_of(request) | {"state": {**state}}))
    last = 0.0
    try:
        while (piece := await call.pieces.get()) is not None:
            if isinstance(piece, bytes):
                await asyncio.sleep(last + apart() - monotonic())
                piece += call.waiting()
                last = monotonic()
            yield piece
        await task
    finally:
        call.left.set()
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


def scope_of(request: Asked) -> dict[str, Any]:
    """Return the ASGI scope of a request."""
    path, _, query = request.target.partition("?")
    return {
        "type": "http",
        "asgi": {"version": "3.0"},
        "http_version": "1.1",
        "method": request.method,
        "scheme": "http",
        "path": unquote(path),
        "raw_path": path.encode(),
        "query_string": query.encode("latin-1"),
        "root_path": "",
        "headers": request.headers,
        "client": None,
        "server": None,
    }


class _Call:
    """The two ends of one request."""

    def __init__(self, body: bytes) -> None:
        self._body: bytes | None = body
        self.left = asyncio.Event()
        self.pieces: asyncio.Queue[Head | bytes | None] = asyncio.Queue(WAITING)

    async def run(self, app: ASGIApp, scope: Scope) -> None:
        """Call the application; the last piece is None."""
        try:
            await app(scope, self._receive, self._send)
        finally:
            if not self.left.is_set():
                await self.pieces.put(None)

    def waiting(self) -> bytes:
        """Return what has been sent of the body and was not read."""
        content = b""
        while not self.pieces.empty():
            piece = self.pieces.get_nowait()
            if not isinstance(piece, bytes):
                self.pieces.put_nowait(piece)  # the end, behind which nothing comes
                break
            content += piece
        return content

    async def _receive(self) -> Message:
        if self._body is None:
            await self.left.wait()
            return {"type": "http.disconnect"}
        body, self._body = self._body, None
        return {"type": "http.request", "body": body}

    async def _send(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            headers = [
                (bytes(name), bytes(value)) for name, value in message["headers"]
            ]
            await self.pieces.put((message["status"], headers))
        elif message.get("body"):
            await self.pieces.put(message["body"])
