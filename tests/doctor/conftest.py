"""A real server of texts."""

from collections.abc import Callable
from contextlib import AbstractContextManager
from http.server import BaseHTTPRequestHandler

import pytest

from serving import Quiet, answering


def served(text: str) -> AbstractContextManager[str]:
    """Serve a text at /metrics, and nothing elsewhere; yield the address."""

    class Handler(Quiet, BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            body = text.encode()
            self.send_response(200 if self.path == "/metrics" else 404)
            self.send_header("content-length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

    return answering(Handler)


@pytest.fixture
def serving() -> Callable[[str], AbstractContextManager[str]]:
    """Return a function that serves a text at /metrics."""
    return served
