"""ASGI application of a router: its own routes, then its replicas'."""

from collections import defaultdict
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping
from contextlib import asynccontextmanager
from typing import Any

from fastapi import APIRouter, FastAPI, Request
from fastapi.responses import Response
from prometheus_client import CollectorRegistry, ProcessCollector, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector
from starlette.middleware import Middleware
from starlette.routing import Route as HttpRoute

from foreword_server.app import catch, cors
from foreword_server.batches import routes as files
from foreword_server.batches.jobs import Batches
from foreword_server.dialects import plain
from foreword_server.dialects.listing import described, model_list
from foreword_server.errors import ApiError, stopping
from foreword_server.gate import Gate
from foreword_server.page import routes as page
from foreword_server.replicas.models import ManyModels
from foreword_server.replicas.router import Routed, Router
from foreword_server.routes import ROUTES
from foreword_server.wire import Json


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
    """Return an application whose replicas answer callers in this process."""
    app = FastAPI(openapi_url=None)
    catch(app, router.reported)
    _add_rest(app, router)
    return app


def _add_state(app: FastAPI, router: Router) -> None:
    routes = APIRouter()
    plain.add_version(routes)

    @routes.get("/health")
    async def health(http_request: Request) -> Response:
        """Say which replicas are ready; 503 if none is. Names of models need a key."""
        if not router.models.ready:
            raise ApiError(503, "no replica is ready. Wait, or restart the server")
        known = http_request.state.tenant or not router.settings.keys
        return Json({"status": "ok", **(router.models.state if known else {})})

    @routes.get("/ready")
    async def ready() -> Response:
        """Say whether new requests are accepted."""
        if router.leaving or not router.models.ready:
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

    def about(name: str, http_request: Request) -> dict[str, Any]:
        hosted = models.named(name)
        entry = hosted.entry
        status = {"value": hosted.status}
        return described(
            name,
            hosted.created,
            http_request,
            root=entry.name,
            parent=None if name == entry.name else entry.name,
            **({"status": status} if models.has_status else {}),
        )

    @routes.get("/v1/models")
    async def list_models(http_request: Request) -> Response:
        """List all models, loaded or not."""
        names = [name for one in models.hosted for name in one.entry.names]
        data = [about(name, http_request) for name in names]
        return Json(model_list(data, http_request))

    @routes.get("/v1/models/{name:path}")
    async def one_model(name: str, http_request: Request) -> Response:
        """Describe a model."""
        return Json(about(name, http_request))


def _add_rest(app: FastAPI, router: Router) -> None:
    """Give the requests of all other routes to a replica."""
    routes = served(app)

    async def rest(http_request: Request) -> Response:
        return Routed(router, http_request)

    for route in ROUTES:
        methods = [name for name in route.methods if (route.path, name) not in routes]
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


REPLICA = "replica"
"""Label with the number of a replica."""
ROUTER = "router"
"""Value of that label in metrics of the router's process."""


async def merged(router: Router) -> bytes:
    """Return the metrics of all replicas that are ready, in Prometheus' text."""
    replicas = await router.models.metrics()
    process = CollectorRegistry()
    ProcessCollector(registry=process)
    counted = CollectorRegistry(auto_describe=False)
    counted.register(_Counted(router))
    text = generate_latest(process).decode()
    texts = {ROUTER: text, **replicas}
    together = labelled(texts).encode()
    return together + generate_latest(counted)


def labelled(texts: Mapping[str, str]) -> str:
    """Return the metrics of several processes as one text, each sample with the name of
    its process. Lines are not parsed further: every stream waits meanwhile.
    """
    heads: dict[str, dict[str, str]] = defaultdict(dict)
    samples: dict[str, list[str]] = defaultdict(list)
    for name, text in texts.items():
        family = ""
        for line in text.splitlines():
            if line.startswith("#"):
                _, kind, family, _ = line.split(" ", 3)
                heads[family].setdefault(kind, line)
                continue
            end = line.index("{" if "{" in line else " ")
            metric, rest = line[:end], line[end:].removeprefix("{")
            mark = "," if "{" in line else "}"
            label = f'{REPLICA}="{name}"{mark}'
            samples[family].append(f"{metric}{{{label}{rest}")
    lines: list[str] = []
    for family, head in heads.items():
        lines += [*head.values(), *samples[family]]
    return "".join(f"{line}\n" for line in lines)


class _Counted(Collector):
    """What the router itself counts."""

    def __init__(self, router: Router) -> None:
        self._router = router

    def collect(self) -> Iterable[Metric]:
        """Yield the metrics."""
        router = self._router
        ready = GaugeMetricFamily(
            "foreword:replica_ready",
            "Whether a replica takes requests.",
            labels=[REPLICA],
        )
        for model, pool in router.models.pools.items():
            for replica in pool.replicas:
                ready.add_metric([f"{model}{replica.name}"], replica.ready)
        yield ready
        yield CounterMetricFamily(
            "foreword:replica_restarts",
            "Replicas that ended and were started again.",
            value=router.models.restarts,
        )
        yield CounterMetricFamily(
            "foreword:requests_continued",
            "Requests that went on at another replica.",
            value=router.continued,
        )
        yield router.limits.responses({})
