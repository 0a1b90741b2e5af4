"""Requests to the routes of this process, without a connection."""

import asyncio
import json
import secrets
from collections.abc import MutableMapping
from dataclasses import dataclass, field
from typing import Any

from starlette.types import ASGIApp, Message

from foreword_server.batches.results import Response
from foreword_server.routes import decided


@dataclass(frozen=True, slots=True)
class Inside:
    """The routes of an application, called for one tenant."""

    app: ASGIApp
    tenant: str = ""

    async def post(self, path: str, body: dict[str, Any]) -> Response:
        """Return what a path answers to a body."""
        request_id = f"req_{secrets.token_hex(12)}"
        exchange = _Exchange(json.dumps(body).encode())
        scope: MutableMapping[str, Any] = {
            "type": "http",
            "asgi": {"version": "3.0"},
            "http_version": "1.1",
            "method": "POST",
            "scheme": "http",
            "path": path,
            "raw_path": path.encode(),
            "query_string": b"",
            "root_path": "",
            "headers": [(b"content-type", b"application/json")],
            "client": None,
            "server": None,
            "state": {
                "request_id": request_id,
                "tenant": self.tenant,
                "decision": decided("POST", path.encode()),
            },
        }
        await self.app(scope, exchange.receive, exchange.send)
        return Response(exchange.status, request_id, json.loads(exchange.answer))


@dataclass(slots=True)
class _Exchange:
    """The two ends of one request."""

    body: bytes | None
    status: int = 500
    answer: bytearray = field(default_factory=bytearray)

    async def receive(self) -> Message:
        if self.body is None:
            await asyncio.Future()  # this client never leaves
        body, self.body = self.body, None
        return {"type": "http.request", "body": body, "more_body": False}

    async def send(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            self.status = message["status"]
        else:
            self.answer += message.get("body", b"")
