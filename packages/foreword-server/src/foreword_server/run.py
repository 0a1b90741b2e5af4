"""Process of a server: uvicorn around the application, readiness, drain on SIGTERM."""

import asyncio
import gc
import logging
import signal
import socket
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from math import inf
from time import monotonic
from types import FrameType

import uvicorn
from starlette.types import ASGIApp

from foreword.errors import InvalidRequest
from foreword_server.app import build_app
from foreword_server.connections import (
    BACKLOG,
    QUEUE,
    connection_class,
    most_connections,
    quiet_accept_errors,
)
from foreword_server.front import Front
from foreword_server.log import NAME
from foreword_server.service import Service
from foreword_server.settings import Settings

CLOSE = (b"connection", b"close")
"""Header of responses after SIGTERM: the next request goes to another server."""
LAST_SECONDS = 5
"""Seconds for connections to read the end of their answers, after draining."""


def serve(
    service: Service,
    listener: socket.socket,
    started: Callable[[], None] = lambda: None,
    *,
    quiet: bool = False,
) -> None:
    """Serve on a bound socket until SIGINT or SIGTERM; `started` is called when
    requests are accepted.

    `quiet`: log only warnings and errors. Raises ForewordError if the engine fails.
    """
    log_to_stderr(logging.WARNING if quiet else logging.INFO)
    gc.collect()
    # models and modules stay: without this, a full collection stops every stream for
    # 0.15 s
    gc.freeze()
    app = build_app(service)
    HttpServer(service, app, most_connections(), started).run(sockets=[listener])
    if service.failure is not None:
        raise service.failure


def bound(settings: Settings) -> socket.socket:
    """Return a socket bound to the address of the settings; port 0 takes a free one.

    Raises InvalidRequest if the address cannot be used.
    """
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(
            settings.host.strip("[]"), settings.port, type=socket.SOCK_STREAM
        )[0]
        listener = socket.socket(family, kind, protocol)
        try:
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            listener.bind(address)
        except OSError:
            listener.close()
            raise
    except OSError as error:
        raise InvalidRequest(
            f"cannot bind to {settings.host}:{settings.port}: "
            f"{error.strerror or error}. Choose another '--port'"
        ) from error
    return listener


def log_to_stderr(level: int = logging.INFO) -> None:
    """Let the server's log lines reach stderr, unless the program set up logging."""
    logger = logging.getLogger(NAME)
    if not logger.hasHandlers():
        handler = logging.StreamHandler(sys.stderr)
        handler.setFormatter(logging.Formatter("%(message)s"))
        logger.addHandler(handler)
        logger.setLevel(level)


class HttpServer(uvicorn.Server):
    """uvicorn's server, which after a first signal only ends running answers."""

    def __init__(
        self, front: Front, app: ASGIApp, connections: int, started: Callable[[], None]
    ) -> None:
        """`connections`: most with a request. `started` is called when it accepts."""
        front.limits.requests = connections
        config = uvicorn.Config(
            app,
            http=connection_class(connections),
            ws="none",
            loop="asyncio",
            backlog=BACKLOG,
            log_config=None,
            log_level="warning",
            access_log=False,
            server_header=False,
            timeout_graceful_shutdown=LAST_SECONDS,
        )
        super().__init__(config)
        self._front, self._started = front, started
        self._signal: tuple[int, FrameType | None] | None = None
        """The first signal, until the running answers have ended."""
        self._refuses_at = inf
        """monotonic() at which new requests are refused."""
        self._deadline = inf
        """monotonic() at which answers that still run are cut."""

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        quiet_accept_errors(asyncio.get_running_loop(), self._front.log)
        await super().startup(sockets)
        for listener in sockets or ():
            listener.listen(QUEUE)  # uvicorn sets both to the backlog
        self._started()

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Handle signals, but not an interrupt that was ignored at the start, as in a
        job in the background.
        """
        before = signal.getsignal(signal.SIGINT)
        with super().capture_signals():
            if before is signal.SIG_IGN:
                signal.signal(signal.SIGINT, before)
            yield

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """Begin to leave at the first signal; end at the second.

        A replica leaves Ctrl-C, which reaches all processes of a terminal, to its
        router.
        """
        if sig == signal.SIGINT and self._front.settings.routed:
            return
        if self._front.leaving:
            self._signal = None
            self._front.stopped.set()
            super().handle_exit(sig, frame)
            return
        self._front.leaving = True
        self._signal = sig, frame
        self.config.encoded_headers.append(CLOSE)
        self.server_state.default_headers = [*self.server_state.default_headers, CLOSE]
        self._refuses_at = monotonic() + self._front.settings.leave
        if self._front.settings.leave:
            self._front.log.event("leaving", answers=self._front.limits.active)
        else:
            self._drain()

    def _drain(self) -> None:
        self._front.drain()
        self._deadline = monotonic() + self._front.settings.drain
        self._front.log.event("draining", answers=self._front.limits.active)

    async def on_tick(self, counter: int) -> bool:
        """End the server once it fails, or drains and is idle, or time is over."""
        self.should_exit |= self._front.failure is not None
        if self._signal is not None and not self._front.draining:
            if monotonic() >= self._refuses_at:
                self._drain()
        elif self._signal is not None:
            if monotonic() >= self._deadline:
                self._front.stopped.set()
            if self._front.stopped.is_set() or not self._front.limits.active:
                super().handle_exit(*self._signal)
                self._signal = None
        return await super().on_tick(counter)
