"""A server with OpenAI's API, and requests to it: one, or several at once."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from http.client import HTTPException
from importlib.util import find_spec
from ipaddress import ip_address
from threading import Barrier
from typing import TYPE_CHECKING, Any
from urllib.error import HTTPError, URLError
from urllib.parse import urlsplit
from urllib.request import OpenerDirector, ProxyHandler, Request, build_opener

if TYPE_CHECKING or find_spec("foreword"):
    from foreword.errors import InvalidRequest
else:  # a server is certified without Foreword, too
    InvalidRequest = ValueError

REFUSED = (400, 404, 405, 415, 422, 429, 501)
"""HTTP status codes of a request that the server does not serve."""
TIMEOUT = 600.0
"""Seconds. Longest wait for one answer: a large model on a CPU is slow."""
QUOTED = 300
"""Characters of an error body that are quoted."""

Body = Mapping[str, Any]


class Unreachable(InvalidRequest):
    """The server, its model or a key is not there."""


class Unsupported(Exception):
    """The server refuses what a check needs."""


class Broken(Exception):
    """The server fails, or answers outside its API."""


@dataclass(frozen=True, slots=True)
class Server:
    """Address, key and model of a server."""

    base: str
    """Address up to and with /v1."""
    key: str | None = None
    model: str = ""
    opener: OpenerDirector = field(default_factory=build_opener, compare=False)

    @classmethod
    def at(cls, url: str, key: str | None = None, model: str | None = None) -> Server:
        """Return the server at an address, with or without /v1; without a name, with
        the first model that it lists.

        Raises Unreachable if it cannot be reached.
        """
        base = url.rstrip("/").removesuffix("/v1") + "/v1"
        proxies = [ProxyHandler({})] if _is_local(base) else []
        opener = build_opener(*proxies)
        server = cls(base, key, model or "", opener)
        if model is not None:
            return server
        try:
            models = server.json(f"{base}/models")
            listed = models["data"][0]["id"]
        except (Unsupported, Broken, LookupError, TypeError) as error:
            raise Unreachable(
                f"cannot find the model of {base}: {reason(error)}. Give '--model'"
            ) from error
        return replace(server, model=listed)

    def post(self, path: str, body: Body) -> Any:
        """Return the JSON that answers a request.

        Raises Unsupported if it is refused, Broken if the server fails, Unreachable if
        it is gone.
        """
        named = {"model": self.model, **body}
        return self.json(self.base + path, named)

    def at_once(self, requests: Sequence[tuple[str, Body]]) -> list[Any]:
        """Return the answers to requests that are sent at the same time."""
        start = Barrier(len(requests))

        def send(request: tuple[str, Body]) -> Any:
            start.wait()
            return self.post(*request)

        with ThreadPoolExecutor(len(requests)) as threads:
            return list(threads.map(send, requests))

    def json(self, url: str, body: Body | None = None) -> Any:
        """Return the JSON of an address of the server, or that answers a body."""
        content = self._read(url, body)
        try:
            return json.loads(content)
        except ValueError as error:
            raise Broken(f"{url} answers without JSON") from error

    def text(self, url: str) -> str:
        """Return the text of an address of the server.

        Raises Unsupported, Broken or Unreachable as `post` does.
        """
        return self._read(url).decode(errors="replace")

    def _read(self, url: str, body: Body | None = None) -> bytes:
        headers = {"content-type": "application/json"}
        if self.key:
            headers["authorization"] = f"Bearer {self.key}"
        data = None if body is None else json.dumps(body).encode()
        try:
            request = Request(url, data, headers)
            with self.opener.open(request, timeout=TIMEOUT) as response:
                return response.read()
        except HTTPError as error:
            raise _refusal(error, url) from error
        except (URLError, OSError, HTTPException) as error:
            raise Unreachable(
                f"cannot reach {url}: {reason(error)}. Check the address and that the "
                "server runs"
            ) from error


def reason(error: Exception) -> str:
    """Return the first line of an error, to quote it, or its class name."""
    lines = str(error).strip().splitlines() or [type(error).__name__]
    return lines[0].rstrip(" .:!")


def _refusal(error: HTTPError, url: str) -> Exception:
    said = error.read().decode(errors="replace")[:QUOTED]
    what = f"{url} answers with status {error.code}: {said}"
    if error.code in (401, 403):
        return Unreachable(f"cannot use {what}. Give '--key'")
    if error.code in REFUSED:
        return Unsupported(what)
    return Broken(what)


def _is_local(url: str) -> bool:
    host = urlsplit(url).hostname or ""
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"
