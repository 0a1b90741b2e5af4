"""Lists of models in the shapes of OpenAI and of Anthropic."""

from datetime import UTC, datetime
from typing import Any

from starlette.requests import Request

ANTHROPIC = "anthropic-version"
"""Header of Anthropic's clients."""


def model_list(data: list[dict[str, Any]], http_request: Request) -> dict[str, Any]:
    """Return a list of described models in the shape of the client that asks."""
    if ANTHROPIC not in http_request.headers:
        return {"object": "list", "data": data}
    return {
        "data": data,
        "has_more": False,
        "first_id": data[0]["id"],
        "last_id": data[-1]["id"],
    }


def described(
    name: str, created: int, http_request: Request, **more: Any
) -> dict[str, Any]:
    """Return a model in the shape of the client; `more`: what OpenAI's read besides."""
    if ANTHROPIC in http_request.headers:
        at = datetime.fromtimestamp(created, UTC)
        return {
            "type": "model",
            "id": name,
            "display_name": name,
            "created_at": at.strftime("%Y-%m-%dT%H:%M:%SZ"),
        }
    return {
        "id": name,
        "object": "model",
        "created": created,
        "owned_by": "foreword",
        **more,
    }
