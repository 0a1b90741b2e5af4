"""JSON responses and server-sent events."""

import json
from typing import Any

from starlette.responses import JSONResponse

DONE = b"data: [DONE]\n\n"
"""End of a stream in some dialects of OpenAI."""
PING_SECONDS = 10.0
"""Seconds. Longest silence of a stream: clients and proxies give up silent ones, and a
long prompt is read, or a model loaded, for minutes.
"""
PING = b": ping\n\n"
"""A comment, which clients skip."""


def json_bytes(data: object) -> bytes:
    """Return compact JSON in UTF-8; lone surrogates become escapes."""
    return json.dumps(data, ensure_ascii=False, separators=(",", ":")).encode(
        "utf-8", "backslashreplace"
    )


def event(data: object, name: str | None = None) -> bytes:
    """Return one server-sent event with JSON data."""
    return (
        (f"event: {name}\n" if name else "").encode()
        + b"data: "
        + json_bytes(data)
        + b"\n\n"
    )


class Json(JSONResponse):
    """A JSON response that can hold whatever a request held."""

    def render(self, content: Any) -> bytes:
        """Return the body."""
        return json_bytes(content)
