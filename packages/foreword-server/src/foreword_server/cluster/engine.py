"""Ray deployments that hold a model or several, and the router's handle on them."""

from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from functools import cached_property, partial
from typing import Any, cast

from ray.exceptions import RayError
from ray.serve import get_replica_context
from ray.serve.exceptions import BackPressureError, RayServeException
from ray.serve.handle import DeploymentHandle, DeploymentResponseGenerator
from starlette.types import ASGIApp, Send

from foreword import __version__
from foreword.errors import ForewordError, InvalidRequest
from foreword_server.cluster.called import Head, called
from foreword_server.cluster.counts import Counts
from foreword_server.errors import ApiError
from foreword_server.log import Log
from foreword_server.replicas.charges import Charge
from foreword_server.replicas.pool import (
    SCRAPE_SECONDS,
    Answered,
    Asked,
    Lost,
    Pool,
)
from foreword_server.replicas.process import Start
from foreword_server.replicas.serve import Begun, many_models
from foreword_server.wire import Json

PIECE_SECONDS = 0.004
"""Seconds between two pieces of an answer for each answer that runs: four times what an
ingress needs for a piece, as measured. So one ingress keeps up with four replicas.
"""
LONGEST_SECONDS = 0.05
"""Seconds that tokens wait for others at most, as in Ray Serve LLM."""


class Engine:
    """A replica: a model, and the routes of a server without a port."""

    def __init__(self, start: Start, version: str) -> None:
        """`version`: what the command that deploys has.

        Raises InvalidRequest if this node has another one.
        """
        check_version(version)
        from foreword.api.llm import LLM
        from foreword_server.app import build_app
        from foreword_server.service import Service

        llm = LLM(start.model, **start.options)
        bundled = start.model is None
        self._service = Service(llm, start.settings, bundled=bundled)
        self._app = build_app(self._service)
        self._asked = 0

    async def ask(
        self, request: Asked, model: str | None = None, *, load: bool = True
    ) -> AsyncIterator[Head | bytes]:
        """Yield the head of a response, then its body in pieces. `load`: whether the
        model may be loaded for this, where there are several.
        """
        self._asked += 1
        app = self._application(request, model, load)
        try:
            async for piece in called(app, request, self._apart):
                yield piece
        finally:
            self._asked -= 1

    def _application(self, *call: Any) -> ASGIApp:
        """Return what answers a request; `call`: that, its model, whether to load."""
        return self._app

    def _apart(self) -> float:
        """Return the seconds between pieces of an answer: an ingress keeps up."""
        return min(LONGEST_SECONDS, PIECE_SECONDS * self._asked)

    async def about(self) -> dict[str, Any]:
        """Return what a router says of its replicas."""
        return {"name": self._service.name, "method": self._service.llm.method}

    async def metrics(self) -> dict[str, str]:
        """Return the metrics as Prometheus' text, by the name of this replica, and of
        its process where there are several.
        """
        replica = get_replica_context().replica_id.unique_id
        texts = await self._texts()
        return {f"{replica}/{name}".rstrip("/"): text for name, text in texts.items()}

    async def _texts(self) -> dict[str, str]:
        return {"": self._service.metrics.text().decode()}

    async def check_health(self) -> None:
        """Raise an error if rounds have ended; Ray then starts another replica."""
        if not self._service.alive:
            raise ForewordError("the engine has ended. Restart the replica")
        self.counts.add((await self.metrics()).values())

    @cached_property
    def counts(self) -> Counts:
        """The counts in Ray's metrics."""
        return Counts()

    async def __del__(self) -> None:
        """End the threads."""
        service = getattr(self, "_service", None)
        if service is not None:
            await service.close()


def check_version(version: str) -> None:
    """Raise InvalidRequest if this node has another version of Foreword."""
    if version != __version__:
        raise InvalidRequest(
            f"cannot start a replica: its node has Foreword {__version__}, and "
            f"this command {version}. Install one version on all nodes"
        )


class NamedEngine(Engine):
    """A replica that holds as many models as its memory has room for."""

    def __init__(self, start: Start, version: str) -> None:
        check_version(version)
        assert start.catalog is not None
        self._begin = many_models(start.catalog, start.settings)
        self._begun: Begun | None = None
        self._asked = 0

    async def check_health(self) -> None:
        """Load the models that stay, the first time: Ray waits for it."""
        if self._begun is None:
            self._begun = await self._begin(Log())
        self.counts.add((await self.metrics()).values())

    async def about(self) -> dict[str, Any]:
        """Return what a router says of its replicas."""
        assert self._begun is not None
        return {"name": self._begun.about, "method": "the method of each"}

    async def _texts(self) -> dict[str, str]:
        assert self._begun is not None
        return await self._begun.models.metrics()

    def _application(self, *call: Any) -> ASGIApp:
        return partial(self._relay, *call)

    async def _relay(
        self, request: Asked, model: str | None, load: bool, *ends: Any
    ) -> None:
        """Send the response of a model's process as it is."""
        assert self._begun is not None
        models = self._begun.models
        try:
            async with models.lease(model, load=load) as pool:
                await _send_on(pool, request, ends[-1])
        except ApiError as error:
            body = error.body()
            await Json(body, error.status, error.headers)(*ends)

    async def __del__(self) -> None:
        """End the processes."""
        begun = getattr(self, "_begun", None)
        if begun is not None:
            await begun.stop()


async def _send_on(pool: Pool, request: Asked, send: Send) -> None:
    blocks, charge = request.blocks, Charge()
    replica = await pool.pick(blocks, (), charge)
    with pool.running(replica, 1, blocks, charge):
        async with replica.ask(request) as answered:
            head = dict(status=answered.status, headers=answered.headers)
            await send({"type": "http.response.start", **head})
            body = {"type": "http.response.body"}
            async for piece in answered.pieces:
                await send({**body, "body": piece})


class Handle:
    """Whatever replicas Ray has: it chooses one for each request."""

    def __init__(self, handle: DeploymentHandle) -> None:
        self._handle = handle

    @asynccontextmanager
    async def ask(
        self, request: Asked, model: str | None = None, *, load: bool = True
    ) -> AsyncIterator[Answered]:
        """Yield the response to a request. Raises Lost if its replica ends."""
        ask = self._handle.options(stream=True, method_name="ask")
        response = ask.remote(request, model, load=load)
        pieces = aiter(cast("DeploymentResponseGenerator[Any]", response))
        try:
            with _lost():
                status, headers = cast("Head", await anext(pieces))
            yield Answered(status, headers, _rest(pieces))
        finally:
            response.cancel()

    async def about(self) -> dict[str, Any]:
        """Return what a replica says of itself, once there is one."""
        return await self._handle.about.remote()

    async def metrics(self) -> dict[str, str]:
        """Return the metrics of each replica."""
        response = self._handle.broadcast("metrics")
        try:
            results = await response.results_async(
                timeout_s=SCRAPE_SECONDS, return_exceptions=True
            )
        except TimeoutError:
            return {}
        texts = [one for one in results if isinstance(one, dict)]
        return {name: text for each in texts for name, text in each.items()}


async def _rest(pieces: AsyncIterator[Any]) -> AsyncIterator[bytes]:
    while True:
        with _lost():
            try:
                piece = await anext(pieces)
            except StopAsyncIteration:
                return
        yield piece


@contextmanager
def _lost() -> Iterator[None]:
    """Raise Lost for what Ray raises about a replica, and 429 when all are full."""
    try:
        yield
    except BackPressureError as error:
        raise ApiError(
            429,
            "cannot queue this request: all replicas are full. Try again later",
            code="overloaded",
            retry_after=1,
        ) from error
    except (RayError, RayServeException) as error:
        raise Lost from error
