"""Errors of HTTP requests, in the shape of each dialect and without local folders."""

import re
import sys
from collections.abc import Callable
from pathlib import Path, PurePath
from typing import Any

from starlette.types import Scope

import foreword
from foreword.errors import (
    ContextExceeded,
    ForewordError,
    InvalidRequest,
    UnknownMethod,
    named,
)
from foreword.files import cache
from foreword_server.wire import Json

KINDS = {
    400: ("invalid_request_error", "invalid_request_error"),
    401: ("authentication_error", "authentication_error"),
    403: ("permission_error", "permission_error"),
    404: ("invalid_request_error", "not_found_error"),
    408: ("invalid_request_error", "timeout_error"),
    413: ("invalid_request_error", "request_too_large"),
    429: ("rate_limit_error", "rate_limit_error"),
    500: ("server_error", "api_error"),
    503: ("overloaded_error", "overloaded_error"),
}
"""Status -> error type in OpenAI's dialect and in Anthropic's; others are as 400 or as
500.
"""
CONTEXT = "context_length_exceeded"
ENDS_PROCESS = "request_ends_process"
"""Code of a request that ended the processes which ran it: it would end more."""
LONGEST = 2000
"""Characters of a message. What it quotes of a request may be as long as a body."""

REST = r"[^\s'\"`,;)\]]*"
"""What follows a folder in a path, up to a mark that ends it in a sentence."""


class ApiError(ForewordError):
    """A request that ends with an HTTP status other than 200."""

    def __init__(
        self,
        status: int,
        message: str,
        *,
        param: str | None = None,
        code: str | None = None,
        retry_after: int | None = None,
        exceeded: ContextExceeded | None = None,
        allow: str | None = None,
    ) -> None:
        """`retry_after`: seconds after which the client may try again. `allow`: methods
        that the path takes.
        """
        super().__init__(
            message if len(message) <= LONGEST else f"{message[:LONGEST]} …"
        )
        self.status = status
        self.param = param
        self.code = code
        self.retry_after = retry_after
        self.exceeded = exceeded
        self.allow = allow

    @property
    def headers(self) -> dict[str, str]:
        """Return the headers of the response."""
        headers = {
            "Allow": self.allow,
            "Retry-After": self.retry_after,
            "WWW-Authenticate": "Bearer" if self.status == 401 else None,
        }
        return {
            name: f"{value}" for name, value in headers.items() if value is not None
        }

    def body(
        self, *, anthropic: bool = False, request_id: str | None = None
    ) -> dict[str, Any]:
        """Return the response's body, in OpenAI's shape or Anthropic's."""
        kind, kind_of_anthropic = KINDS.get(
            self.status, KINDS[400 if self.status < 500 else 500]
        )
        if anthropic:
            exceeded = self.exceeded
            words = str(self) if exceeded is None else exceeded.as_anthropic
            return {
                "type": "error",
                "error": {"type": kind_of_anthropic, "message": words},
                "request_id": request_id,
            }
        return {
            "error": {
                "message": str(self),
                "type": kind,
                "param": self.param,
                "code": self.code,
            }
        }


def stopping() -> ApiError:
    """Return the error of a request to a server that stops."""
    return ApiError(
        503,
        "cannot serve this request: the server stops. Send it to another",
        retry_after=5,
    )


def as_api_error(error: BaseException, shown: Callable[[str], str] = str) -> ApiError:
    """Return an exception as an ApiError: what the request did wrong is 400, everything
    else 500.

    `shown` returns a message as clients may read it.
    """
    if isinstance(error, ApiError):
        return ApiError(
            error.status,
            shown(str(error)),
            param=error.param,
            code=error.code,
            retry_after=error.retry_after,
            exceeded=error.exceeded,
        )
    if isinstance(error, ContextExceeded):
        return ApiError(400, shown(str(error)), code=CONTEXT, exceeded=error)
    if isinstance(error, InvalidRequest | UnknownMethod):
        return ApiError(400, shown(str(error)))
    message = shown(f"cannot finish this request: {named(error)}. Send it again")
    return ApiError(500, message, code="internal_error")


def refused(error: ApiError, scope: Scope) -> Json:
    """Return the response of an error, in the dialect of its request."""
    state = scope["state"]
    body = error.body(
        anthropic=state["decision"].route.anthropic, request_id=state["request_id"]
    )
    return Json(body, error.status, error.headers)


class PrivatePaths:
    """The folders that answers must not name, since a client should not learn them."""

    def __init__(self, *models: str) -> None:
        """`models`: names of targets, which may be their folders."""
        near = [
            Path.home(),
            Path.cwd(),
            cache(),
            Path(sys.prefix),
            Path(foreword.__file__).parent,
        ]
        names = [PurePath(model) for model in models]
        folders = {str(folder) for folder in near}
        # drafts lie beside it
        folders |= {str(name.parent) for name in names if name.is_absolute()}
        folders |= {
            str(name) for name in names if name.is_absolute() or len(name.parts) > 2
        }
        folders -= {"/", "."}
        longest_first = sorted(folders, key=len, reverse=True)
        self._paths = re.compile(
            rf"(?:{'|'.join(map(re.escape, longest_first))})(?![\w.-]){REST}"
        )

    def hidden(self, text: str) -> str:
        """Return a text with the name of a file or folder in place of its path."""
        return self._paths.sub(lambda match: _name(match[0]), text)


def _name(path: str) -> str:
    end = path[len(path.rstrip(".:")) :]
    return PurePath(path.rstrip(".:")).name + end
