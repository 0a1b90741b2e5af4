"""Limits on a server's connections: their number, and the wait for a request."""

import asyncio
import sys
from pathlib import Path
from typing import Any, ClassVar

import h11
from uvicorn.protocols.http.h11_impl import H11Protocol

from foreword_server.log import Log

ASK_SECONDS = 20.0
"""Seconds. A connection that has not sent the head of a request by then is closed."""
UNREAD_SECONDS = 60.0
"""Seconds. A connection that reads nothing for so long is closed: it holds a place."""
SPARE = 80
"""Descriptors for files, PROBES, and connections accepted but not yet refused."""
PROBES = 16
"""Connections beyond the bound, so that a server with as many streams as it can hold
still says that it is alive.
"""
LEAST = 8
"""Connections. So many are served however low the limit of descriptors is."""
MOST = 4096
"""Connections, where the system sets no lower limit."""
BACKLOG = 8
"""Connections accepted in one turn of the event loop.

The connections of about four turns are open before one is closed.
"""
QUEUE = 1024
"""Connections that wait in the system to be accepted."""
SILENT_SECONDS = 60.0
"""Seconds between two log lines about accepting."""
REFUSED = (
    b"HTTP/1.1 503 Service Unavailable\r\nconnection: close\r\nretry-after: 5\r\n"
    b"content-type: application/json\r\ncontent-length: %d\r\n\r\n%s"
)
FULL = (
    b'{"error":{"message":"cannot serve this connection: the server has as many as it '
    b"can hold. "
    b'Try again later","type":"overloaded_error","param":null,"code":"overloaded"}}'
)


class Connection(H11Protocol):
    """uvicorn's connection, bounded in number and in the time of a request's head."""

    most: ClassVar[int] = MOST
    """Connections that may be open, beside PROBES."""
    waiting: ClassVar["dict[Connection, None]"] = {}
    """Connections without a request, the oldest first."""

    def connection_made(self, transport: asyncio.Transport) -> None:
        """Take a connection; beyond the bound close one that waits, or refuse it."""
        super().connection_made(transport)
        self._deadline: asyncio.TimerHandle | None = None
        self._unread: asyncio.TimerHandle | None = None
        if len(self.connections) > self.most + PROBES:
            oldest = next(iter(self.waiting), None)
            if oldest is None:
                transport.write(REFUSED % (len(FULL), FULL))
                transport.close()
                return
            oldest.leave()
        self._watch()

    def data_received(self, data: bytes) -> None:
        """Read bytes of a request."""
        super().data_received(data)
        self._watch()

    def connection_lost(self, exc: Exception | None) -> None:
        """Forget the connection."""
        self._unwatch()
        self._end_of_unread()
        super().connection_lost(exc)

    def on_response_complete(self) -> None:
        """Wait for the next request."""
        super().on_response_complete()
        self._watch()

    def pause_writing(self) -> None:
        """Wait for the client to read."""
        super().pause_writing()
        self._unread = self.loop.call_later(UNREAD_SECONDS, self.transport.abort)

    def resume_writing(self) -> None:
        """Go on: the client has read."""
        self._end_of_unread()
        super().resume_writing()

    def leave(self) -> None:
        """Close a connection without a request."""
        self._unwatch()
        self.transport.close()

    def _watch(self) -> None:
        """Set the time limit of a request's head, which more bytes do not extend."""
        answered = self.cycle is not None and self.cycle.response_complete
        if self.transport.is_closing() or not (
            answered or self.conn.their_state is h11.IDLE
        ):
            self._unwatch()
        elif self._deadline is None:
            self._deadline = self.loop.call_later(ASK_SECONDS, self.leave)
            self.waiting[self] = None

    def _unwatch(self) -> None:
        self.waiting.pop(self, None)
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None

    def _end_of_unread(self) -> None:
        if self._unread is not None:
            self._unread.cancel()
            self._unread = None


def connection_class(most: int) -> type[Connection]:
    """Return the class of connections of a server that holds at most `most`."""
    return type("BoundedConnection", (Connection,), {"most": most, "waiting": {}})


def most_connections() -> int:
    """Return how many connections the limit of descriptors allows, after raising it up
    to the hard limit.
    """
    if sys.platform == "win32":
        return MOST
    import resource

    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    limit = 2 * MOST if hard == resource.RLIM_INFINITY else min(2 * MOST, hard)
    if soft != resource.RLIM_INFINITY and soft < limit:
        resource.setrlimit(resource.RLIMIT_NOFILE, (limit, hard))
        soft = limit
    if soft == resource.RLIM_INFINITY:
        return MOST
    return max(LEAST, min(MOST, soft - _open_files() - SPARE))


def _open_files() -> int:
    """Return the descriptors that this process holds."""
    folder = next(
        (one for one in (Path("/proc/self/fd"), Path("/dev/fd")) if one.exists()), None
    )
    return sum(1 for _ in folder.iterdir()) if folder else SPARE


def quiet_accept_errors(loop: asyncio.AbstractEventLoop, log: Log) -> None:
    """Log errors of accepting as one line a minute; asyncio makes thousands."""
    silent_until = 0.0

    def handle(loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        nonlocal silent_until
        if "socket.accept" not in context.get("message", ""):
            loop.default_exception_handler(context)
        elif loop.time() >= silent_until:
            silent_until = loop.time() + SILENT_SECONDS
            log.warn("accept failed", error=str(context.get("exception", "")))

    loop.set_exception_handler(handle)
