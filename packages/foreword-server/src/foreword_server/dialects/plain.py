"""Routes beside generation: models, tokens, health, version, metrics."""

from functools import partial
from typing import Annotated, Any

from fastapi import APIRouter, Query, Request
from fastapi.responses import Response, StreamingResponse
from fastapi.routing import APIRoute
from pydantic import BaseModel, ConfigDict, Field

from foreword import __version__
from foreword.api.requests import Requests
from foreword.chats.prompts import ids_of
from foreword.errors import InvalidRequest
from foreword.registry import METHODS
from foreword_server.body import content, parsed, takes
from foreword_server.dialects.fields import Messages
from foreword_server.dialects.listing import described, model_list
from foreword_server.errors import ApiError
from foreword_server.limits import MOST_ITEMS
from foreword_server.reply import Computed
from foreword_server.service import Service
from foreword_server.wire import Json, event


class TokenizeBody(BaseModel):
    """Text or a chat to tokenize (vLLM's fields)."""

    model_config = ConfigDict(extra="allow")

    model: str | None = None
    prompt: str | None = None
    messages: Messages | None = None
    add_special_tokens: bool = True
    return_token_strs: bool = False


class DetokenizeBody(BaseModel):
    """Token ids to turn into text."""

    model_config = ConfigDict(extra="allow")

    model: str | None = None
    tokens: Annotated[list[int], Field(fail_fast=True, max_length=MOST_ITEMS)]


class LoadBody(BaseModel):
    """A model that a client wants to use."""

    model_config = ConfigDict(extra="allow")

    model: str


def routes(service: Service) -> APIRouter:
    """Return the routes."""
    router = APIRouter()
    _add_models(router, service)
    _add_tokens(router, service)
    _add_state(router, service)
    add_heads(router)
    return router


def add_heads(router: APIRouter) -> None:
    """Answer HEAD wherever GET is answered, as probes ask."""
    for route in [*router.routes]:
        if isinstance(route, APIRoute) and "GET" in (route.methods or ()):
            router.add_api_route(
                route.path, route.endpoint, methods=["HEAD"], include_in_schema=False
            )


def _add_models(router: APIRouter, service: Service) -> None:
    @router.get("/v1/models", tags=["models"])
    async def models(
        http_request: Request,
        methods: Annotated[
            bool, Query(description="Whether names with a method are listed too.")
        ] = False,
    ) -> dict[str, Any]:
        """List the model and its adapters; with `?methods=1` also each drafting method
        as their suffix.

        Clients of Anthropic get the list in their shape.
        """
        usable = [name for name in METHODS if methods and service.can_draft(name)]
        names = [
            name
            for model in service.names
            for name in (model, *(f"{model}:{method}" for method in usable))
        ]
        data = [_described(service, name, http_request) for name in names]
        return model_list(data, http_request)

    @router.get("/v1/models/{name:path}", tags=["models"])
    async def model(name: str, http_request: Request) -> dict[str, Any]:
        """Describe the model."""
        service.resolve(name)
        return _described(service, name, http_request)

    @router.post("/load_model", tags=["models"], openapi_extra=takes(LoadBody))
    async def load_model(http_request: Request) -> Response:
        """Say that the model is loaded, as `transformers chat` asks at its start."""
        text = await content(http_request)
        body = await service.texts.run(
            http_request.state.tenant, len(text), lambda _: parsed(text, LoadBody)
        )
        name = service.resolve(body.model).name
        ready = event({"status": "ready", "model": name, "cached": True})
        return StreamingResponse(iter([ready]), media_type="text/event-stream")


def _described(service: Service, name: str, http_request: Request) -> dict[str, Any]:
    """Return a model in the shape of the client that asks."""
    adapted = service.resolve(name).adapter is not None
    return described(
        name,
        service.created,
        http_request,
        root=service.name,
        parent=service.name if adapted else None,
        max_model_len=service.context,
    )


def _add_tokens(router: APIRouter, service: Service) -> None:
    @router.post("/tokenize", tags=["tokens"], openapi_extra=takes(TokenizeBody))
    async def tokenize(http_request: Request) -> Response:
        """Return the token ids of a text or a chat."""
        return Computed(
            service,
            await content(http_request),
            TokenizeBody,
            partial(_tokens, service.context),
        )

    @router.post("/detokenize", tags=["tokens"], openapi_extra=takes(DetokenizeBody))
    async def detokenize(http_request: Request) -> Response:
        """Return the text of token ids."""
        return Computed(
            service,
            await content(http_request),
            DetokenizeBody,
            partial(_text, service.llm.target.vocab),
        )


def _add_state(router: APIRouter, service: Service) -> None:
    @router.get("/health", tags=["server"])
    async def health() -> Response:
        """Say whether the engine is alive."""
        if service.alive:
            return Json({"status": "ok"})
        raise ApiError(503, "the engine has ended. Restart the server")

    @router.get("/ready", tags=["server"])
    async def ready() -> Response:
        """Say whether new requests are accepted; 503 while the server stops."""
        if service.leaving or not service.alive:
            raise ApiError(
                503,
                "cannot accept requests: the server stops. Send them to another",
                retry_after=5,
            )
        return Json({"status": "ready"})

    add_version(router)
    content = {"text/plain": {"schema": {"type": "string"}}}

    @router.get(
        "/metrics",
        tags=["server"],
        response_class=Response,
        responses={200: {"content": content}},
    )
    async def metrics() -> Response:
        """Return Prometheus metrics."""
        return Response(
            service.metrics.text(),
            media_type="text/plain; version=0.0.4; charset=utf-8",
        )


def add_version(router: APIRouter) -> None:
    """Add the route that needs no model."""

    @router.get("/version", tags=["server"])
    async def version() -> dict[str, str]:
        """Return the version of Foreword."""
        return {"version": __version__}


def _tokens(context: int, body: TokenizeBody, requests: Requests) -> dict[str, Any]:
    if (body.prompt is None) == (body.messages is None):
        raise InvalidRequest("cannot tokenize: give either 'prompt' or 'messages'")
    if body.messages is not None:
        tokens = ids_of(requests.render(body.messages))
    else:
        tokens = requests.ids(body.prompt or "", special=body.add_special_tokens)
    result: dict[str, Any] = {
        "tokens": tokens,
        "count": len(tokens),
        "max_model_len": context,
    }
    if body.return_token_strs:
        result["token_strs"] = requests.tokenizer.convert_ids_to_tokens(tokens)
    return result


def _text(vocabulary: int, body: DetokenizeBody, requests: Requests) -> dict[str, Any]:
    if any(not 0 <= token < vocabulary for token in body.tokens):
        raise InvalidRequest(
            f"cannot detokenize: token ids must be in [0, {vocabulary})"
        )
    return {"prompt": requests.tokenizer.decode(body.tokens)}
