"""A replica as a server in its own process, on a Unix socket for its router alone."""

import asyncio
import multiprocessing
import os
import re
import signal
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

import httpx2 as httpx

from foreword.errors import ForewordError, InvalidRequest
from foreword_server.replicas.catalog import Catalog
from foreword_server.replicas.child import run
from foreword_server.replicas.places import Place
from foreword_server.replicas.pool import Answered, Asked, Lost, Unreachable
from foreword_server.settings import Settings

CONNECT_SECONDS = 10.0
"""Seconds to be accepted by a replica, which is on this machine."""
PSS = re.compile(r"^Pss:\s+(\d+) kB", re.MULTILINE)
IDLE_SECONDS = 2.0
"""Seconds that an idle connection is kept: less than the 5 s of a server."""
END_SECONDS = 10.0
"""Seconds between SIGTERM and SIGKILL."""


@dataclass(frozen=True, slots=True)
class Start:
    """What a replica serves."""

    model: str | None
    options: dict[str, Any]
    """Keyword arguments of LLM."""
    settings: Settings
    catalog: Catalog | None = None
    """Models by name, on Ray, in place of one; the options hold for each."""


class NotReady(ForewordError):
    """A replica that ended before it was ready."""


@dataclass(slots=True, eq=False)
class Process:
    """A process that serves; `start` may be called again after it has ended."""

    start_with: Start
    place: Place
    socket: Path
    seconds: float
    """Most until it is ready."""
    _process: BaseProcess | None = None
    _client: httpx.AsyncClient | None = None
    _ended: asyncio.Event = field(default_factory=asyncio.Event)

    async def start(self) -> dict[str, Any]:
        """Start, and return what the server says of itself once it is ready.

        Raises InvalidRequest for what no restart can mend, and NotReady otherwise.
        """
        loop = asyncio.get_running_loop()
        ours, theirs = multiprocessing.Pipe(duplex=False)
        context = multiprocessing.get_context("spawn")
        self._process = context.Process(
            target=run,
            args=(self.start_with, self.place, self.socket, theirs),
            daemon=True,
        )
        self._ended.clear()
        # in this thread: a start that was cancelled would not be watched
        self._process.start()
        theirs.close()
        loop.add_reader(self._process.sentinel, self._notice_end)
        try:
            async with asyncio.timeout(self.seconds):
                about = await _received(ours)
        except TimeoutError:
            await self.kill()
            raise NotReady(
                f"cannot use a replica: it was not ready in {self.seconds:g} s. Give "
                "it longer with '--replica-timeout'"
            ) from None
        except asyncio.CancelledError:
            await self.kill()
            raise
        finally:
            ours.close()
        if "error" in about:
            await self.ended()
            raise InvalidRequest(about["error"])
        if not about:
            await self.ended()
            code = self._process.exitcode
            raise NotReady(
                f"cannot use a replica: it ended with status {code} before it was "
                "ready. See its messages above"
            )
        self._client = _client(self.socket)
        return about

    @property
    def pid(self) -> int | None:
        """Number of the process."""
        return self._process and self._process.pid

    @property
    def memory(self) -> int:
        """Bytes that it takes, with its share of pages that others use too; 0 where
        the system does not say.
        """
        rollup = Path(f"/proc/{self.pid}/smaps_rollup")
        try:
            text = rollup.read_text("utf-8")
        except OSError:
            return 0
        match = PSS.search(text)
        return 1024 * int(match[1]) if match else 0

    @asynccontextmanager
    async def ask(self, request: Asked) -> AsyncIterator[Answered]:
        """Yield the response to a request. Raises Lost if the process ends."""
        client = self._client
        if client is None:
            raise Unreachable
        http_request = client.build_request(
            request.method,
            "/",
            headers=request.headers,
            content=request.body,
            # as it was checked, byte for byte: a URL would be rewritten
            extensions={"target": request.target.encode("latin-1")},
        )
        try:
            response = await client.send(http_request, stream=True)
            try:
                yield Answered(
                    response.status_code, response.headers.raw, _pieces(response)
                )
            finally:
                await response.aclose()
        except httpx.ConnectError as error:
            raise Unreachable from error
        except httpx.TransportError as error:
            raise Lost from error

    async def ended(self) -> None:
        """Wait until the process has ended."""
        await self._ended.wait()
        if self._client is not None:
            client, self._client = self._client, None
            await client.aclose()
        self.socket.unlink(missing_ok=True)

    async def stop(self) -> None:
        """Let the process finish, or kill it."""
        self._signal(signal.SIGTERM)
        try:
            async with asyncio.timeout(END_SECONDS):
                await self.ended()
        except TimeoutError:
            await self.kill()

    async def kill(self) -> None:
        """End the process at once."""
        self._signal(signal.SIGKILL)
        await self.ended()

    def _signal(self, number: int) -> None:
        process = self._process
        if process is None or process.pid is None:
            self._ended.set()
        elif process.is_alive():
            os.kill(process.pid, number)

    def _notice_end(self) -> None:
        process = self._process
        assert process is not None
        loop = asyncio.get_running_loop()
        loop.remove_reader(process.sentinel)
        process.join()
        self._ended.set()


def _client(path: Path) -> httpx.AsyncClient:
    """Return a client of the server at a Unix socket."""
    limits = httpx.Limits(max_connections=None, keepalive_expiry=IDLE_SECONDS)
    return httpx.AsyncClient(
        transport=httpx.AsyncHTTPTransport(uds=str(path), limits=limits),
        base_url="http://replica",
        timeout=httpx.Timeout(None, connect=CONNECT_SECONDS),
    )


async def _pieces(response: httpx.Response) -> AsyncIterator[bytes]:
    """Yield a body as it arrives. Raises Lost if it is cut."""
    try:
        async for piece in response.aiter_raw():
            yield piece
    except httpx.TransportError as error:
        raise Lost from error


async def _received(connection: Connection) -> dict[str, Any]:
    """Return what a process says when it is ready; nothing if it ends before. No thread
    waits for it meanwhile.
    """
    loop, ready = asyncio.get_running_loop(), asyncio.Event()
    loop.add_reader(connection.fileno(), ready.set)
    try:
        await ready.wait()
    finally:
        loop.remove_reader(connection.fileno())
    try:
        return connection.recv()  # it is short, and written at once
    except (EOFError, OSError):
        return {}


def bound(path: Path) -> socket.socket:
    """Return a socket at a path."""
    path.unlink(missing_ok=True)
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(str(path))
    return listener
