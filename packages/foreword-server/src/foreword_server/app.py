"""ASGI application: routes, error shapes, the gate and CORS."""

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from functools import partial
from typing import Any, TypeVar

from fastapi import FastAPI, Request
from fastapi.responses import Response
from pydantic import BaseModel
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.middleware.cors import CORSMiddleware

from foreword import __version__
from foreword.api.requests import Requests
from foreword.errors import ForewordError
from foreword_server import speech
from foreword_server.answer import Call
from foreword_server.batches import routes as files
from foreword_server.batches.jobs import Batches
from foreword_server.body import content, takes, with_bodies
from foreword_server.dialects import plain
from foreword_server.dialects.chat import ChatBody, ChatDialect
from foreword_server.dialects.completions import CompletionBody, CompletionDialect
from foreword_server.dialects.fields import Body
from foreword_server.dialects.ids import Ids
from foreword_server.dialects.message_turns import CountBody
from foreword_server.dialects.messages import MessagesBody, MessagesDialect
from foreword_server.dialects.responses import ResponsesBody, ResponsesDialect
from foreword_server.dialects.translate import Translator
from foreword_server.errors import ApiError, refused
from foreword_server.gate import Gate
from foreword_server.lora import routes as lora
from foreword_server.page import routes as page
from foreword_server.reply import Computed, Dialect, Reply
from foreword_server.service import Service

STREAMED = {
    "text/event-stream": {"schema": {"type": "string"}},
    "application/json": {"schema": {"type": "object"}},
}
BODIES = (
    ChatBody,
    CompletionBody,
    ResponsesBody,
    MessagesBody,
    CountBody,
    page.WhatIfBody,
    plain.TokenizeBody,
    plain.DetokenizeBody,
    plain.LoadBody,
    lora.AdapterBody,
    files.BatchBody,
)
Reported = Callable[[Exception, str], ApiError]
"""Returns an error of the API for an exception in the request of this id."""
BodyKind = TypeVar("BodyKind", bound=Body)
FAILURES: dict[int | str, dict[str, Any]] = {
    400: {"description": "The request cannot be served as it is."},
    401: {"description": "The API key is missing or not valid."},
    403: {"description": "The host is not allowed."},
    404: {"description": "The model or path does not exist."},
    408: {"description": "The body arrived too slowly."},
    413: {"description": "The body is too large, or holds too many values."},
    422: {"description": "Not used: a body that cannot be read is 400."},
    429: {"description": "The server or the key has too much to do; see Retry-After."},
    503: {"description": "The server stops."},
    507: {"description": "The disk is full."},
}


def build_app(service: Service) -> FastAPI:
    """Return the application of a service, which is closed when that ends."""
    settings, batches = service.settings, _batches(service)

    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        if batches is not None:
            batches.start()
        if service.known:
            service.log.event("prompts known", tokens=service.known)
        yield
        if batches is not None:
            await batches.stop()
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
            *cors(settings.origins),
            Middleware(
                Gate,
                settings=settings,
                limits=service.limits,
                log=service.log,
                traces=service.traces,
            ),
        ],
    )
    catch(app, service.reported)
    app.include_router(plain.routes(service))
    app.include_router(lora.routes(service))
    app.include_router(page.routes(service))
    app.include_router(files.routes(batches))
    if service.llm.target.seq2seq is not None and service.llm.target.seq2seq.sound:
        app.include_router(speech.routes(service))
    _add_generation(app, service)
    _add_count(app, service)
    describe = app.openapi
    app.openapi = lambda: with_bodies(describe, BODIES)
    return app


def build_generation(service: Service) -> FastAPI:
    """Return an application with the routes that generate alone, for callers in this
    process: nothing stands before them.
    """
    app = FastAPI(openapi_url=None)
    catch(app, service.reported)
    _add_generation(app, service)
    return app


def _batches(service: Service) -> Batches | None:
    """Return the batches of a service that keeps files."""
    if service.store is None:
        return None
    slots = service.llm.engine.scheduler.slots
    app, width = build_generation(service), max(1, slots // 2)
    return Batches(service.store, app, width, service.settings.concurrent)


def catch(app: FastAPI, reported: Reported) -> None:
    """Answer every error in the shape of its dialect, as `reported` has it."""
    for kind in (ForewordError, HTTPException, Exception):
        app.add_exception_handler(kind, partial(_failed, reported))


def cors(origins: tuple[str, ...]) -> list[Middleware]:
    """Return the middleware that lets pages of other origins send requests."""
    if not origins:
        return []
    return [
        Middleware(
            CORSMiddleware,
            allow_origins=origins,
            allow_methods=["*"],
            allow_headers=["*"],
        )
    ]


def _add_generation(app: FastAPI, service: Service) -> None:
    """Add the routes that generate: a thread of texts translates the body, then the
    answer is sent in its dialect.
    """

    async def reply(
        dialect: Any, kind: type[BodyKind], http_request: Request
    ) -> Response:
        tenant = http_request.state.tenant

        def translate(
            parsed_body: BodyKind, requests: Requests, ids: Ids
        ) -> tuple[Call, Dialect]:
            translator = Translator(service, tenant, requests, ids)
            call = dialect.call(parsed_body, translator)
            writer = dialect(parsed_body, translator)
            parsed_body.forget()
            return call, writer

        return Reply(service, await content(http_request), kind, translate)

    @app.post("/v1/chat/completions", **_generates("OpenAI", ChatBody))
    async def chat_completions(http_request: Request) -> Response:
        """Answer a conversation."""
        return await reply(ChatDialect, ChatBody, http_request)

    @app.post("/v1/completions", **_generates("OpenAI", CompletionBody))
    async def completions(http_request: Request) -> Response:
        """Complete prompts."""
        return await reply(CompletionDialect, CompletionBody, http_request)

    @app.post("/v1/responses", **_generates("OpenAI", ResponsesBody))
    async def responses_(http_request: Request) -> Response:
        """Answer a conversation, in the API that agents use."""
        return await reply(ResponsesDialect, ResponsesBody, http_request)

    @app.post("/v1/messages", **_generates("Anthropic", MessagesBody))
    async def messages(http_request: Request) -> Response:
        """Answer a conversation in Anthropic's API."""
        return await reply(MessagesDialect, MessagesBody, http_request)


def _add_count(app: FastAPI, service: Service) -> None:
    """Add the route that counts the tokens of a conversation."""

    @app.post(
        "/v1/messages/count_tokens", tags=["Anthropic"], openapi_extra=takes(CountBody)
    )
    async def count_tokens(http_request: Request) -> Response:
        """Count the tokens of a conversation."""
        tenant = http_request.state.tenant

        def count(body: CountBody, requests: Requests) -> dict[str, Any]:
            return {
                "input_tokens": MessagesDialect.count(
                    body, Translator(service, tenant, requests)
                )
            }

        return Computed(service, await content(http_request), CountBody, count)


def _generates(tag: str, kind: type[BaseModel]) -> dict[str, Any]:
    """Return the description of a route that generates."""
    answer = {"content": STREAMED, "description": "The answer."}
    return {
        "tags": [tag],
        "responses": {200: answer},
        "response_class": Response,
        "openapi_extra": takes(kind),
    }


async def _failed(
    reported: Reported, http_request: Request, error: Exception
) -> Response:
    """Return an error in the shape of its dialect."""
    request_id = getattr(http_request.state, "request_id", "")
    if isinstance(error, HTTPException):
        detail = str(error.detail)
        if error.status_code == 404:  # of a route that this model does not have
            detail = f"cannot find {http_request.url.path}: no such path"
        failure = ApiError(error.status_code, detail)
    else:
        failure = reported(error, request_id)
    return refused(failure, http_request.scope)
