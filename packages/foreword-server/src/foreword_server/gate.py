"""ASGI middleware before every request: id, host, API key, rate, and one log line."""

import hmac
import re
import secrets
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from http import HTTPStatus
from time import perf_counter
from typing import TYPE_CHECKING, Any

from starlette.datastructures import Headers, MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from foreword_server.errors import ApiError, refused
from foreword_server.limits import Limits
from foreword_server.log import Log
from foreword_server.routes import Decision, Route, decided
from foreword_server.settings import LOOPBACK_NAMES, Settings, digest, is_loopback

if TYPE_CHECKING:
    from foreword_server.telemetry.traces import Traces

HEADERS = 100
"""Headers of a request."""
HEAD_BYTES = 32 * 2**10
"""Bytes of their names and values."""
TENANT = "x-foreword-tenant"
"""Header by which a router says whose request it is: the digest of the caller's key."""
VISIBLE = re.compile(r"[\x21-\x7e]{1,128}")
"""Request ids that are taken over from the client."""
CLIENT_GONE = 499
"""Status in the log of a request whose client left (nginx's number)."""


@dataclass(frozen=True, slots=True)
class Gate:
    """ASGI middleware.

    Adds to `scope["state"]` the `"decision"` what the request is, which everything
    behind the gate reads, its `"request_id"`, and the `"tenant"`: the digest of the
    caller's key.
    """

    app: ASGIApp
    settings: Settings
    limits: Limits
    log: Log
    traces: "Traces | None" = None

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request."""
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        headers, began = Headers(scope=scope), perf_counter()
        request_id = headers.get("x-request-id", "")
        if not VISIBLE.fullmatch(request_id):
            request_id = f"req_{secrets.token_hex(12)}"
        decision = decided(
            scope["method"], scope["raw_path"], scope["query_string"], self.settings
        )
        state = scope.setdefault("state", {})
        state.update(request_id=request_id, tenant="", decision=decision)
        if self.traces is not None:
            state["span"] = self.traces.begin(scope, headers)
        status, length = CLIENT_GONE, 0

        async def receive_counted() -> Message:
            nonlocal length
            message = await receive()
            if not decision.route.body:
                return message
            size = len(message.get("body", b""))
            length += size
            if length > decision.most:
                raise _too_large(decision.most)
            count(size)
            return message

        async def send_with_id(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                MutableHeaders(scope=message)["x-request-id"] = request_id
            await send(message)

        try:
            self._check(decision, state, headers)
            with self._place(decision.route) as count:
                await self.app(scope, receive_counted, send_with_id)
        # before the application was called: it answers its own
        except ApiError as error:
            await refused(error, scope)(scope, receive, send_with_id)
        finally:
            self._note(scope, status, perf_counter() - began)

    def _note(self, scope: Scope, status: int, seconds: float) -> None:
        """Count, trace and log a request that ended."""
        state = scope["state"]
        if state.get("span") is not None:
            state["span"].end(status)
        if not self.settings.routed:  # its router counts
            self.limits.statuses[status] += 1
        self.log.request(
            state["request_id"],
            scope["method"],
            state["decision"].path,
            status,
            seconds,
            state.get("log", {}),
        )

    def _place(self, route: Route) -> AbstractContextManager[Callable[[int], None]]:
        """Return the place of a request among all; probes need none, so that they see a
        server that is busy.
        """
        if route.access == "key":
            return self.limits.request(is_upload=route.body == "file")
        return nullcontext(lambda _: None)

    def _check(
        self, decision: Decision, state: dict[str, Any], headers: Headers
    ) -> None:
        """Raise ApiError for a head, host, path, key or rate that is not allowed."""
        if not self.settings.routed:
            self._check_head(headers)
            self._check_host(headers)
        if decision.refusal is not None:
            raise decision.refusal
        if self.settings.routed:
            # the router has checked all, and no one but it gets here
            state["tenant"] = headers.get(TENANT, "")
            return
        state["tenant"] = self._tenant(headers, needed=decision.needs_key)
        if decision.route.body:
            length = headers.get("content-length", "")
            if length.isdecimal() and int(length) > decision.most:
                raise _too_large(decision.most)
            self.limits.count(state["tenant"])

    def _check_head(self, headers: Headers) -> None:
        """Refuse a head with too much in it."""
        lengths = [len(name) + len(value) for name, value in headers.raw]
        if sum(lengths) > HEAD_BYTES or len(lengths) > HEADERS:
            raise ApiError(
                HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE,
                f"cannot read {len(lengths)} headers of {sum(lengths)} bytes: the "
                f"limits are {HEADERS} and "
                f"{HEAD_BYTES}. Send fewer",
            )

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

    def _tenant(self, headers: Headers, *, needed: bool) -> str:
        """Return the digest of the caller's API key, in hex; "" where there is none.

        Raises ApiError 401 if one is needed.
        """
        if not self.settings.keys:
            return ""
        scheme, _, token = headers.get("authorization", "").partition(" ")
        key = (
            token.strip()
            if scheme.lower() == "bearer"
            else headers.get("x-api-key", "")
        )
        value = digest(key)
        # every key is compared, so the time says nothing about which one is close
        if any([hmac.compare_digest(value, known) for known in self.settings.keys]):  # noqa: C419
            return value.hex()
        if not needed:
            return ""
        reason = "the API key is not valid" if key else "it has no API key"
        raise ApiError(
            HTTPStatus.UNAUTHORIZED,
            f"cannot serve this request: {reason}. Send 'Authorization: Bearer "
            "KEY' or 'x-api-key: KEY'",
            code="invalid_api_key",
        )


def _too_large(limit: int) -> ApiError:
    return ApiError(
        HTTPStatus.REQUEST_ENTITY_TOO_LARGE,
        f"cannot read a body of more than {limit} bytes: that is the limit. Shorten it",
    )
