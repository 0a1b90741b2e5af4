"""Provides the gate in front of every request: its id, its host, its API key, its rate,
and one log line.
"""

from __future__ import annotations

import hmac
import re
import secrets
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from http import HTTPStatus
from time import perf_counter
from typing import TYPE_CHECKING

from starlette.datastructures import Headers, MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from foreword.server.errors import ApiError
from foreword.server.limits import Limits
from foreword.server.log import Log
from foreword.server.settings import LOOPBACK_NAMES, Settings, digest, is_loopback
from foreword.server.wire import Json

if TYPE_CHECKING:
    from foreword.server.telemetry.traces import Traced, Traces

OPEN = ("/", "/health", "/ready", "/version", "/metrics")
"""Paths that probes, scrapers and browsers read without a key.

The page holds no data; what it asks for needs one.
"""
HEADERS = 100
"""Headers of a request."""
HEAD_BYTES = 32 * 2**10
"""Bytes of their names and values."""
METRICS = "/metrics"
TENANT = "x-foreword-tenant"
"""Header by which a router says whose request it is: the digest of the caller's key."""
PAGE = "/page/"
"""Beginning of the paths of the page's files."""
VISIBLE = re.compile(r"[\x21-\x7e]{1,128}")
"""Request ids that are taken over from the client."""
CLIENT_GONE = 499
"""Status in the log of a request whose client left (nginx's number)."""


@dataclass(frozen=True, slots=True)
class Gate:
    """ASGI middleware.

    Adds `scope["state"]["request_id"]` and `["tenant"]`, the digest of the caller's
    key.
    """

    app: ASGIApp
    settings: Settings
    limits: Limits
    log: Log
    traces: Traces | None = None

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request."""
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        headers, began = Headers(scope=scope), perf_counter()
        given = headers.get("x-request-id", "")
        request_id = (
            given if VISIBLE.fullmatch(given) else f"req_{secrets.token_hex(12)}"
        )
        scope.setdefault("state", {}).update(request_id=request_id, tenant="")
        span = self._span(scope, headers)
        status, length = CLIENT_GONE, 0
        most = self.settings.most(scope["path"])

        async def receive_counted() -> Message:
            nonlocal length
            message = await receive()
            size = len(message.get("body", b""))
            length += size
            if length > most:
                raise _too_large(most)
            count(size)
            return message

        async def send_with_id(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                MutableHeaders(scope=message)["x-request-id"] = request_id
            await send(message)

        try:
            self._check(scope, headers)
            with self._place(scope["path"]) as count:
                await self.app(scope, receive_counted, send_with_id)
        # before the application was called: it answers its own
        except ApiError as error:
            body = error.body(scope["path"], request_id)
            await Json(body, error.status, error.headers)(scope, receive, send_with_id)
        finally:
            if span is not None:
                span.end(status)
            self.log.request(
                request_id,
                scope["method"],
                scope["path"],
                status,
                perf_counter() - began,
                scope["state"].get("log", {}),
            )

    def _span(self, scope: Scope, headers: Headers) -> Traced | None:
        """Begin the span of a request; it is in the state, for what its answer adds."""
        if self.traces is None:
            return None
        span = self.traces.begin(scope, headers)
        scope["state"]["span"] = span
        return span

    @property
    def _open(self) -> tuple[str, ...]:
        """Paths that need no key."""
        return tuple(
            path
            for path in OPEN
            if not (path == METRICS and self.settings.private_metrics)
        )

    def _place(self, path: str) -> AbstractContextManager[Callable[[int], None]]:
        """Return the place of a request among all; probes need none, so that they see a
        server that is busy.
        """
        return nullcontext(lambda _: None) if path in OPEN else self.limits.request()

    def _check(self, scope: Scope, headers: Headers) -> None:
        """Raise ApiError for a head, a host, a key or a rate that is not allowed."""
        if self.settings.routed:
            # the router has checked all, and no one but it gets here
            scope["state"]["tenant"] = headers.get(TENANT, "")
            return
        lengths = [len(name) + len(value) for name, value in headers.raw]
        if sum(lengths) > HEAD_BYTES or len(lengths) > HEADERS:
            raise ApiError(
                HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE,
                f"cannot read {len(lengths)} headers of {sum(lengths)} bytes: the "
                f"limits are {HEADERS} and "
                f"{HEAD_BYTES}. Send fewer",
            )
        self._check_host(headers)
        if (
            scope["path"] in self._open
            or scope["path"].startswith(PAGE)
            or scope["method"] == "OPTIONS"
        ):
            return
        length = headers.get("content-length", "")
        most = self.settings.most(scope["path"])
        if length.isdecimal() and int(length) > most:
            raise _too_large(most)
        tenant = self._tenant(headers)
        scope["state"]["tenant"] = tenant
        if scope["method"] == "POST":
            self.limits.count(tenant)

    def _check_host(self, headers: Headers) -> None:
        """Refuse other host names on loopback: a web page could point its own name
        there (DNS rebinding).
        """
        if not is_loopback(self.settings.host):
            return
        name = re.sub(r":\d+$", "", headers.get("host", "localhost")).lower()
        if name not in (*LOOPBACK_NAMES, *self.settings.hosts):
            raise ApiError(
                HTTPStatus.FORBIDDEN,
                f"cannot serve requests for the host {name!r}: this server is local. "
                "Start it with '--allowed-host'",
            )

    def _tenant(self, headers: Headers) -> str:
        """Return the digest of the caller's API key, in hex; "" where no key
        is needed.
        """
        if not self.settings.keys:
            return ""
        scheme, _, token = headers.get("authorization", "").partition(" ")
        key = (
            token.strip()
            if scheme.lower() == "bearer"
            else headers.get("x-api-key", "")
        )
        given = digest(key)
        # every key is compared, so the time says nothing about which one is close
        if not any([hmac.compare_digest(given, known) for known in self.settings.keys]):  # noqa: C419
            reason = "the API key is not valid" if key else "it has no API key"
            raise ApiError(
                HTTPStatus.UNAUTHORIZED,
                f"cannot serve this request: {reason}. Send 'Authorization: Bearer "
                "KEY' or 'x-api-key: KEY'",
                code="invalid_api_key",
            )
        return given.hex()


def _too_large(limit: int) -> ApiError:
    return ApiError(
        HTTPStatus.REQUEST_ENTITY_TOO_LARGE,
        f"cannot read a body of more than {limit} bytes: that is the limit. Shorten it",
    )
