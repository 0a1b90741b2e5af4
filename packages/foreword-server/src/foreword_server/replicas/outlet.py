"""Streams an answer to a router as length-prefixed frames."""

import secrets
from dataclasses import asdict, replace
from typing import Any

from starlette.types import Receive, Scope, Send

from foreword.api.requests import SEEDS
from foreword_server.answer import Answer, Call
from foreword_server.dialects.ids import Ids
from foreword_server.dialects.outlet import Outlet
from foreword_server.replicas.frames import MEDIA_TYPE, Frame, Sent, State
from foreword_server.wire import json_bytes


class FrameOutlet(Outlet):
    """The way to a router: frames, from the first that its client lacks."""

    kind = MEDIA_TYPE

    def __init__(
        self,
        exchange: tuple[Scope, Receive, Send],
        sent: Sent,
    ) -> None:
        super().__init__(*exchange)
        self.sent = sent
        self.ids = Ids(sent.state.salt if sent.state else "")
        self._skipped = sent.frames

    def pinned(self, call: Call) -> Call:
        """Return the call with the seed that every replica uses."""
        known, seed = self.sent.state, call.params.seed
        if known is not None:
            seed = known.seed
        if seed is None:
            seed = secrets.randbelow(SEEDS)
        params = replace(call.params, seed=seed)
        return replace(call, params=params)

    def state(self, answer: Answer) -> dict[str, Any]:
        """Return what another replica would have to know of an answer."""
        seed = answer.call.params.seed or 0
        return asdict(State(self.ids.salt, seed, answer.created, answer.resumes))

    async def write(self, frame: Frame) -> bool:
        """Send a frame that the client does not have."""
        if self._skipped and frame.kind != "end":
            self._skipped -= frame.kind in ("start", "round")
            return False
        await self.body(frame.encoded)
        return True

    async def whole(self, body: dict[str, Any]) -> None:
        """Send an answer that is not streamed."""
        await self.begin()
        await self.body(Frame("whole", json_bytes(body)).encoded)

    async def close(self, log: dict[str, Any]) -> None:
        """Send the counts for the log, and end."""
        await self.body(Frame("log", about=log).encoded)
        await super().close(log)
