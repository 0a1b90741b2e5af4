"""Provides the application of a router: its own routes, then its replicas'."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

from fastapi import FastAPI, Request
from fastapi.responses import Response
from starlette.middleware import Middleware

from foreword.server.app import catch, cors
from foreword.server.batches import routes as files
from foreword.server.batches.jobs import Batches
from foreword.server.dialects.listing import described, model_list
from foreword.server.errors import ApiError, stopping
from foreword.server.gate import Gate
from foreword.server.log import reported
from foreword.server.replicas.metrics import merged
from foreword.server.replicas.models import ManyModels
from foreword.server.replicas.router import Router
from foreword.server.wire import Json

METHODS = ["GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"]


def build_router(
    router: Router,
    batches: Batches | None,
    end: Callable[[], Awaitable[None]],
) -> FastAPI:
    """Return the application. `end` ends the replicas, after the last answer."""

    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        if batches is not None:
            batches.start()
        yield
        if batches is not None:
            await batches.stop()
        await end()

    app = FastAPI(
        openapi_url=None,
        lifespan=lifespan,
        middleware=[
            *cors(router.settings.origins),
            Middleware(
                Gate,
                settings=router.settings,
                limits=router.limits,
                log=router.log,
            ),
        ],
    )
    catch(app, reported)
    _add_state(app, router)
    if isinstance(router.models, ManyModels):
        _add_models(app, router.models)
    if batches is not None:
        app.include_router(files.routes(batches))
    _add_rest(app, router)
    return app


def build_answers(router: Router) -> FastAPI:
    """Return an application whose replicas answer callers in this process: nothing
    stands before it.
    """
    app = FastAPI(openapi_url=None)
    catch(app, reported)
    _add_rest(app, router)
    return app


def _add_state(app: FastAPI, router: Router) -> None:
    @app.api_route("/health", methods=["GET", "HEAD"])
    async def health() -> Response:
        """Say which replicas are ready; 503 if none is."""
        if not router.models.ready:
            raise ApiError(503, "no replica is ready. Wait, or restart the server")
        return Json({"status": "ok", **router.models.state})

    @app.api_route("/ready", methods=["GET", "HEAD"])
    async def ready() -> Response:
        """Say whether new requests are accepted."""
        if router.draining or not router.models.ready:
            raise stopping()
        return Json({"status": "ready"})

    @app.get("/metrics")
    async def metrics() -> Response:
        """Return Prometheus metrics of all replicas."""
        return Response(
            await merged(router),
            media_type="text/plain; version=0.0.4; charset=utf-8",
        )


def _add_models(app: FastAPI, models: ManyModels) -> None:
    """Add the routes that list models."""

    def about(name: str, request: Request) -> dict[str, Any]:
        hosted = models.named(name)
        entry = hosted.entry
        return described(
            name,
            hosted.created,
            request,
            root=entry.name,
            parent=None if name == entry.name else entry.name,
            status={"value": hosted.status},
        )

    @app.get("/v1/models")
    async def list_models(request: Request) -> Response:
        """List all models, loaded or not."""
        names = [name for one in models.hosted for name in one.entry.names]
        data = [about(name, request) for name in names]
        return Json(model_list(data, request))

    @app.get("/v1/models/{name:path}")
    async def one_model(name: str, request: Request) -> Response:
        """Describe a model."""
        return Json(about(name, request))


def _add_rest(app: FastAPI, router: Router) -> None:
    """Give every other request to a replica."""

    @app.api_route("/{path:path}", methods=METHODS)
    async def rest(request: Request) -> Response:
        return router.response(request)
