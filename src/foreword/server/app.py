"""Provides the ASGI application: routes, error shapes, the gate and CORS."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import Response
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.middleware.cors import CORSMiddleware

from foreword import __version__
from foreword.errors import ForewordError, InvalidRequest
from foreword.server import page, speech
from foreword.server.dialects import plain
from foreword.server.dialects.chat import ChatBody, ChatDialect
from foreword.server.dialects.completions import CompletionBody, CompletionDialect
from foreword.server.dialects.messages import CountBody, MessagesBody, MessagesDialect
from foreword.server.dialects.responses import ResponsesBody, ResponsesDialect
from foreword.server.dialects.translate import Translator
from foreword.server.errors import ApiError
from foreword.server.gate import Gate
from foreword.server.reply import Reply
from foreword.server.service import Service
from foreword.server.wire import Json

STREAMED = {"text/event-stream": {"schema": {"type": "string"}}, "application/json": {"schema": {"type": "object"}}}
KINDS = re.compile(r"(function-|(str|int|float|bool|list|dict)$|(list|dict|literal)\[)")
"""Beginnings of places in pydantic's errors that are types, not fields."""
FAILURES: dict[int | str, dict[str, Any]] = {
    400: {"description": "The request cannot be served as it is."},
    401: {"description": "The API key is missing or not valid."},
    403: {"description": "The host is not allowed."},
    404: {"description": "There is no such model or path."},
    413: {"description": "The body is too large."},
    422: {"description": "Not used: a body that cannot be read is 400."},
    429: {"description": "The server or the key has too much to do; see Retry-After."},
    503: {"description": "The server stops."},
}


def build_app(service: Service) -> FastAPI:
    """Return the application of a service; the service is closed when the application ends."""
    settings = service.settings

    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        yield
        await service.close()

    app = FastAPI(
        title="Foreword",
        version=__version__,
        summary="Exact speculative decoding behind OpenAI's and Anthropic's APIs.",
        lifespan=lifespan,
        redoc_url=None,
        docs_url=None,  # its page loads scripts from another host
        responses=FAILURES,
        middleware=[
            *_cors(settings.origins),
            Middleware(Gate, settings=settings, limits=service.limits, log=service.log),
        ],
    )
    for kind in (ForewordError, RequestValidationError, HTTPException, Exception):
        app.add_exception_handler(kind, _Failure(service))
    app.include_router(plain.routes(service))
    app.include_router(page.routes(service))
    if service.llm.target.seq2seq is not None and service.llm.target.seq2seq.sound:
        app.include_router(speech.routes(service))
    _add_generation(app, service)
    return app


def _cors(origins: tuple[str, ...]) -> list[Middleware]:
    if not origins:
        return []
    return [Middleware(CORSMiddleware, allow_origins=origins, allow_methods=["*"], allow_headers=["*"])]


def _add_generation(app: FastAPI, service: Service) -> None:
    """Add the routes that generate: each translates its body in the thread of texts, then replies in its dialect."""
    responses: dict[int | str, dict[str, Any]] = {200: {"content": STREAMED, "description": "The answer."}}

    def translator(request: Request) -> Translator:
        return Translator(service, request.state.tenant)

    @app.post("/v1/chat/completions", tags=["OpenAI"], responses=responses, response_class=Response)
    async def chat_completions(body: ChatBody, request: Request) -> Response:
        """Answer a conversation."""
        return await reply(ChatDialect, body, request)

    @app.post("/v1/completions", tags=["OpenAI"], responses=responses, response_class=Response)
    async def completions(body: CompletionBody, request: Request) -> Response:
        """Complete prompts."""
        return await reply(CompletionDialect, body, request)

    @app.post("/v1/responses", tags=["OpenAI"], responses=responses, response_class=Response)
    async def responses_(body: ResponsesBody, request: Request) -> Response:
        """Answer a conversation, in the API that agents use."""
        return await reply(ResponsesDialect, body, request)

    @app.post("/v1/messages", tags=["Anthropic"], responses=responses, response_class=Response)
    async def messages(body: MessagesBody, request: Request) -> Response:
        """Answer a conversation in Anthropic's API."""
        return await reply(MessagesDialect, body, request)

    @app.post("/v1/messages/count_tokens", tags=["Anthropic"])
    async def count_tokens(body: CountBody, request: Request) -> dict[str, int]:
        """Count the tokens of a conversation."""
        return {"input_tokens": await service.in_texts(MessagesDialect.count, body, translator(request))}

    async def reply(dialect: Any, body: Any, request: Request) -> Response:
        given = translator(request)
        call = await service.in_texts(dialect.call, body, given)
        return Reply(service, call, dialect(body, given))


class _Failure:
    """Exception handler: every error in the shape of its dialect."""

    def __init__(self, service: Service) -> None:
        self._service = service

    async def __call__(self, request: Request, error: Exception) -> Response:
        request_id = getattr(request.state, "request_id", "")
        if isinstance(error, RequestValidationError):
            failure = _unreadable(error, request)
        elif isinstance(error, HTTPException):
            failure = ApiError(error.status_code, _about(error, request))
        else:
            failure = self._service.reported(error, request_id)
        body = failure.body(request.url.path, request_id)
        return Json(body, failure.status, failure.headers | dict(getattr(error, "headers", None) or {}))


def _about(error: HTTPException, request: Request) -> str:
    """Return the message of a request that no route takes, or whose body cannot be parsed."""
    if error.status_code == 400:
        return "cannot read the body: it is not JSON that can be parsed. Send one JSON object"
    if error.status_code == 404:
        return f"cannot find {request.url.path}: no such path"
    if error.status_code == 405:
        allowed = (error.headers or {}).get("Allow", "another method")
        return f"cannot {request.method} {request.url.path}: the path does not take it. Use {allowed}"
    return str(error.detail)


def _unreadable(error: RequestValidationError, request: Request) -> ApiError:
    """Return the first fault of a body as an error that names its field."""
    first = error.errors()[0]
    if first["type"] == "json_invalid":
        about = first.get("ctx", {}).get("error")
        return ApiError(400, f"cannot read the body: it is not JSON at character {first['loc'][1]}: {about}")
    if isinstance(error.body, bytes) and error.body:
        given = request.headers.get("content-type")
        return ApiError(400, f"cannot read the body: its content-type is {given!r}. Send application/json")
    where = ".".join(str(part) for part in first["loc"][1:] if not KINDS.match(str(part)))
    if isinstance(cause := first.get("ctx", {}).get("error"), InvalidRequest):
        return ApiError(400, str(cause), param=where or None)
    subject = f"cannot read {where!r}" if where else "cannot read the body"
    return ApiError(400, f"{subject}: {first['msg']}", param=where or None)
