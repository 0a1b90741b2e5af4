"""Requests to the routes of this process, without a connection."""

import json
import secrets
from dataclasses import dataclass
from typing import Any, cast

from starlette.types import ASGIApp

from foreword_server.batches.results import Response
from foreword_server.cluster.called import Head, called
from foreword_server.replicas.pool import Asked
from foreword_server.routes import decided


@dataclass(frozen=True, slots=True)
class Inside:
    """The routes of an application, called for one tenant."""

    app: ASGIApp
    tenant: str = ""

    async def post(self, path: str, body: dict[str, Any]) -> Response:
        """Return what a path answers to a body."""
        request_id = f"req_{secrets.token_hex(12)}"
        headers = [(b"content-type", b"application/json")]
        request = Asked("POST", path, headers, json.dumps(body).encode())
        state = {
            "request_id": request_id,
            "tenant": self.tenant,
            "decision": decided("POST", path.encode()),
        }
        answered = called(self.app, request, state=state)
        head, *pieces = [piece async for piece in answered]
        status, _ = cast("Head", head)
        answer = b"".join(cast("list[bytes]", pieces))
        return Response(status, request_id, json.loads(answer))
