"""Provides the process of a server: uvicorn around the application, readiness, and draining on SIGTERM."""

from __future__ import annotations

import gc
import logging
import socket
import sys
from collections.abc import Callable
from types import FrameType

import uvicorn

from foreword.errors import InvalidRequest
from foreword.server.app import build_app
from foreword.server.log import NAME
from foreword.server.service import Service
from foreword.server.settings import Settings


def serve(
    service: Service, listener: socket.socket, started: Callable[[], None] = lambda: None, *, quiet: bool = False
) -> None:
    """Serve on a bound socket until SIGINT or SIGTERM; `started` is called when requests are accepted.

    `quiet`: log only warnings and errors.
    """
    _log_to_stderr(logging.WARNING if quiet else logging.INFO)
    config = uvicorn.Config(
        build_app(service),
        log_config=None,
        log_level="warning",
        access_log=False,
        server_header=False,
        timeout_graceful_shutdown=max(1, round(service.settings.drain)),
    )
    gc.collect()
    gc.freeze()  # models and modules stay: without this, a full collection stops every stream for 0.15 s
    _Server(config, service, started).run(sockets=[listener])


def bound(settings: Settings) -> socket.socket:
    """Return a socket bound to the address of the settings; port 0 takes a free one.

    Raises InvalidRequest if the address cannot be used.
    """
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(
            settings.host.strip("[]"), settings.port, type=socket.SOCK_STREAM
        )[0]
        listener = socket.socket(family, kind, protocol)
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(address)
    except OSError as error:
        raise InvalidRequest(
            f"cannot bind to {settings.host}:{settings.port}: {error.strerror or error}. Choose another '--port'"
        ) from error
    return listener


def _log_to_stderr(level: int) -> None:
    """Let the server's log lines reach stderr, unless the embedding program has set up logging itself."""
    logger = logging.getLogger(NAME)
    if not logger.hasHandlers():
        handler = logging.StreamHandler(sys.stderr)
        handler.setFormatter(logging.Formatter("%(message)s"))
        logger.addHandler(handler)
        logger.setLevel(level)


class _Server(uvicorn.Server):
    """uvicorn's server; on the first signal it stops admission, then waits for running answers."""

    def __init__(self, config: uvicorn.Config, service: Service, started: Callable[[], None]) -> None:
        super().__init__(config)
        self._service, self._started = service, started

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        self._started()

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        if not self._service.draining:
            self._service.draining = True
            self._service.log.event("draining", answers=self._service.limits.active)
        super().handle_exit(sig, frame)
