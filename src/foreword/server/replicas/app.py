"""Provides the application of a router: its own routes, then its replicas'."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

from fastapi import APIRouter, FastAPI, Request
from fastapi.responses import Response
from starlette.middleware import Middleware
from starlette.routing import Route as HttpRoute

from foreword.server import page
from foreword.server.app import catch, cors
from foreword.server.batches import routes as files
from foreword.server.batches.jobs import Batches
from foreword.server.dialects import plain
from foreword.server.dialects.listing import described, model_list
from foreword.server.errors import ApiError, stopping
from foreword.server.gate import Gate
from foreword.server.replicas.metrics import merged
from foreword.server.replicas.models import ManyModels
from foreword.server.replicas.router import Router
from foreword.server.routes import ROUTES
from foreword.server.wire import Json


def build_router(
    router: Router, batches: Batches | None, end: Callable[[], Awaitable[None]]
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
                Gate, settings=router.settings, limits=router.limits, log=router.log
            ),
        ],
    )
    catch(app, router.reported)
    _add_state(app, router)
    app.include_router(page.files())
    app.include_router(files.routes(batches))
    _add_rest(app, router)
    return app


def build_answers(router: Router) -> FastAPI:
    """Return an application whose replicas answer callers in this process: nothing
    stands before it.
    """
    app = FastAPI(openapi_url=None)
    catch(app, router.reported)
    _add_rest(app, router)
    return app


def _add_state(app: FastAPI, router: Router) -> None:
    routes = APIRouter()
    plain.add_version(routes)

    @routes.get("/health")
    async def health(request: Request) -> Response:
        """Say which replicas are ready; 503 if none is. Names of models are for those
        who have a key.
        """
        if not router.models.ready:
            raise ApiError(503, "no replica is ready. Wait, or restart the server")
        known = request.state.tenant or not router.settings.keys
        return Json({"status": "ok", **(router.models.state if known else {})})

    @routes.get("/ready")
    async def ready() -> Response:
        """Say whether new requests are accepted."""
        if router.draining or not router.models.ready:
            raise stopping()
        return Json({"status": "ready"})

    @routes.get("/metrics")
    async def metrics() -> Response:
        """Return Prometheus metrics of all replicas."""
        return Response(
            await merged(router), media_type="text/plain; version=0.0.4; charset=utf-8"
        )

    if isinstance(router.models, ManyModels):
        _add_models(routes, router.models)
    plain.add_heads(routes)
    app.include_router(routes)


def _add_models(routes: APIRouter, models: ManyModels) -> None:
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

    @routes.get("/v1/models")
    async def list_models(request: Request) -> Response:
        """List all models, loaded or not."""
        names = [name for one in models.hosted for name in one.entry.names]
        data = [about(name, request) for name in names]
        return Json(model_list(data, request))

    @routes.get("/v1/models/{name:path}")
    async def one_model(name: str, request: Request) -> Response:
        """Describe a model."""
        return Json(about(name, request))


def _add_rest(app: FastAPI, router: Router) -> None:
    """Give the requests of all other routes to a replica."""
    own = served(app)

    async def rest(request: Request) -> Response:
        return router.response(request)

    for route in ROUTES:
        methods = [name for name in route.methods if (route.path, name) not in own]
        if methods:
            app.add_api_route(route.path, rest, methods=methods)


def served(app: FastAPI | APIRouter) -> set[tuple[str, str]]:
    """Return the paths and methods that an application takes."""
    taken: set[tuple[str, str]] = set()
    for route in app.routes:
        # newer versions of FastAPI keep an included router whole
        if (included := getattr(route, "original_router", None)) is not None:
            taken |= served(included)
        elif isinstance(route, HttpRoute):
            taken |= {(route.path, method) for method in route.methods or ()}
    return taken
