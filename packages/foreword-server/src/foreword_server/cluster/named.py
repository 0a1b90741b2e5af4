"""Ray deployment that holds models by name: each in a process of its own, loaded when a
request names it.
"""

from functools import partial
from typing import Any

from starlette.types import ASGIApp, Send

from foreword_server.cluster.engine import Engine, check_version
from foreword_server.errors import ApiError
from foreword_server.log import Log
from foreword_server.replicas.charges import Charge
from foreword_server.replicas.pool import Answered, Asked
from foreword_server.replicas.process import Start
from foreword_server.replicas.serve import Begun, many_models
from foreword_server.wire import Json


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

    def _application(self, request: Asked, model: str | None, load: bool) -> ASGIApp:
        return partial(self._relay, request, model, load)

    async def _relay(
        self, request: Asked, model: str | None, load: bool, *ends: Any
    ) -> None:
        """Send the response of a model's process as it is."""
        assert self._begun is not None
        *_, send = ends
        try:
            async with self._begun.models.lease(model, load=load) as pool:
                charge = Charge()
                replica = await pool.pick(request.blocks, (), charge)
                with pool.running(replica, 1, request.blocks, charge):
                    async with replica.ask(request) as answered:
                        await _send_on(answered, send)
        except ApiError as error:
            await Json(error.body(), error.status, error.headers)(*ends)

    async def __del__(self) -> None:
        """End the processes."""
        begun = getattr(self, "_begun", None)
        if begun is not None:
            await begun.stop()


async def _send_on(answered: Answered, send: Send) -> None:
    start = {"type": "http.response.start", "status": answered.status}
    await send({**start, "headers": answered.headers})
    async for piece in answered.pieces:
        await send({"type": "http.response.body", "body": piece})
