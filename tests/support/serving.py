"""A real server on a real port, with the bundled models."""

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from http.server import (
    BaseHTTPRequestHandler,
    HTTPServer,
    SimpleHTTPRequestHandler,
    ThreadingHTTPServer,
)
from pathlib import Path
from threading import Event, Thread
from typing import Any

import httpx2 as httpx

from foreword import LLM
from foreword_server.app import build_app
from foreword_server.batches.store import Store
from foreword_server.run import HttpServer, bound
from foreword_server.service import Service
from foreword_server.settings import Settings


class Quiet:
    """A handler without a log."""

    def log_message(self, *_: object) -> None:
        """Print nothing."""


class Files(Quiet, SimpleHTTPRequestHandler):
    """Answers with files of a folder."""


@contextmanager
def started(server: HTTPServer) -> Iterator[str]:
    """Run a server in a thread; yield its address."""
    thread = Thread(target=server.serve_forever, args=(0.01,))
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def answering(
    handler: Callable[..., BaseHTTPRequestHandler],
) -> AbstractContextManager[str]:
    """Run a server of another program's files or answers; yield its address."""
    return started(ThreadingHTTPServer(("127.0.0.1", 0), handler))


@dataclass(frozen=True)
class Running:
    """A server that runs, and a client for it."""

    service: Service
    url: str
    http: httpx.Client
    server: HttpServer

    def post(self, path: str, **body: Any) -> Any:
        """Return the JSON of a request that succeeds."""
        response = self.http.post(path, json=body)
        assert response.status_code == 200, response.text
        return response.json()


@contextmanager
def running(
    llm: LLM, *, connections: int = 1000, files: Path | None = None, **settings: Any
) -> Iterator[Running]:
    """Run a server in a thread; port 0 takes a free one."""
    chosen = Settings(port=0, files=files, **settings)
    service = Service(llm, chosen, bundled=True, store=Store.of(chosen))
    listener = bound(service.settings)
    host, port = listener.getsockname()
    up = Event()
    server = HttpServer(service, build_app(service), connections, up.set)
    thread = Thread(target=server.run, kwargs={"sockets": [listener]})
    thread.start()
    try:
        assert up.wait(60)
        url = f"http://{host}:{port}"
        with httpx.Client(base_url=url, timeout=120) as http:
            yield Running(service, url, http, server)
    finally:
        server.should_exit = True
        thread.join()
