"""Routes of the page at `/`: files, methods, measured costs and what-if replays."""

import asyncio
import json
from functools import partial
from pathlib import PurePath
from typing import Annotated, Any

from fastapi import APIRouter, Request
from fastapi.responses import Response
from pydantic import BaseModel, Field

from foreword.budget import AdaptiveBudget
from foreword.draft import method
from foreword.engine.choosing import Chooser
from foreword.hindsight import whatif as hindsight
from foreword.model.vision.processor import reads_images
from foreword.native.cpu import processor
from foreword.native.openmp import threads
from foreword.recording import Recording
from foreword.registry import DEFAULT_RULE, METHODS
from foreword.types.round import short
from foreword.wanted import Abandoned
from foreword_server.body import content, parsed, takes
from foreword_server.errors import ApiError
from foreword_server.leaving import Silence, while_connected
from foreword_server.page.files import POLICY, static_file
from foreword_server.routes import PAGE
from foreword_server.service import Service

HEADERS = {
    "content-security-policy": (
        f"{POLICY}; script-src 'self'; style-src 'self'; connect-src 'self'; "
        "frame-ancestors 'none'"
    ),
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
    "cache-control": "no-cache",
}
ROWS = (1, 2, 4, 8, 12, 16, 32, 64)
"""Numbers of rows whose cost is listed."""
MILLI = 1000


def files() -> APIRouter:
    """Return the routes of the page's files, which need no model."""
    router = APIRouter()

    @router.api_route("/", methods=["GET", "HEAD"], include_in_schema=False)
    async def index() -> Response:
        return _file("index.html")

    @router.api_route(PAGE, methods=["GET", "HEAD"], include_in_schema=False)
    async def file(name: str) -> Response:
        return _file(name)

    return router


def routes(service: Service) -> APIRouter:
    """Return the routes of the page and of what it shows of a model."""
    router = files()

    @router.get("/speculation", tags=["server"])
    async def speculation() -> dict[str, Any]:
        """Describe the drafting methods and the measured cost of passes."""
        return described(service)

    replaying = asyncio.Lock()

    @router.post(
        "/speculation/whatif", tags=["server"], openapi_extra=takes(WhatIfBody)
    )
    async def what_if(http_request: Request) -> Any:
        """Re-score a recorded answer for other methods, while the client stays."""
        body = await content(http_request)
        if replaying.locked():
            raise ApiError(
                503, "cannot replay now: another answer is replayed. Try again"
            )
        replayed = partial(_replayed, service, body)
        async with replaying:
            try:
                return await while_connected(http_request, None, replayed)
            except Abandoned:
                return Silence()

    return router


class WhatIfBody(BaseModel):
    """Request to re-score a recording."""

    recording: dict[str, Any]
    """Recording in the format of `docs/formats/recordings.md`."""
    methods: list[str] | None = Field(default=None, max_length=32)
    """Default: every method that requests may name."""
    nodes: list[Annotated[int, Field(ge=1, le=64)]] = Field(
        default=[4, 8], min_length=1, max_length=8
    )
    """Draft tokens in a round."""
    rules: list[str] = Field(default=[DEFAULT_RULE], min_length=1, max_length=8)
    """Verification rules; others than the default replay chains."""
    trees: bool = False
    """Whether the rounds are part of the result."""


def _replayed(service: Service, body: bytes) -> dict[str, Any]:
    request = parsed(body, WhatIfBody)
    recording = Recording.from_json(json.dumps(request.recording))
    result = hindsight.what_if(
        service.llm, recording, request.methods, request.nodes, rules=request.rules
    )
    return result.as_json(trees=request.trees)


def described(service: Service) -> dict[str, Any]:
    """Return the methods that requests may name, and the default budget's costs."""
    llm, usable = service.llm, [name for name in METHODS if service.can_draft(name)]
    speculator = llm.engine.default
    budget = speculator.budget
    learned = budget if isinstance(budget, AdaptiveBudget) else None
    members = speculator.members if isinstance(speculator, Chooser) else [speculator]
    # of several methods, the first one is the draft's own
    first = members[0].budget
    forward = {
        rows: learned.costs.seconds(rows) if learned else service.cost(rows - 1)
        for rows in ROWS
    }
    terms = first.terms if isinstance(first, AdaptiveBudget) else None
    overhead = terms.overhead if terms else 0.0
    per_token = None
    if terms is not None and terms.price.known:
        price = terms.price
        per_token = {
            "start_ms": short(MILLI * terms.proposing(0)),
            "token_ms": short(MILLI * terms.each),
            "unread_ms": short(MILLI * terms.plain * price.unread.each),
            "rounds": round(price.drafting.weight),
        }
    scheduler = llm.engine.scheduler
    source = llm.session.speculators.label(llm.method).partition(" from ")[2]
    return {
        "model": service.name,
        "method": llm.method,
        "draft": PurePath(source).name,
        "context": service.context,
        "images": reads_images(llm.target),
        "sampling": llm.sampling,
        "machine": {"cpu": processor(), "threads": threads()},
        "methods": [
            {"name": name, "summary": method(name).about.summary} for name in usable
        ],
        "costs": {
            "forward_ms": {
                str(rows): short(MILLI * seconds) for rows, seconds in forward.items()
            },
            "overhead_ms": short(MILLI * overhead),
            "context_ms": short(MILLI * service.cost.per_token),
            "drafting": per_token,
        },
        "scheduling": {
            "slots": scheduler.slots,
            "chunk": scheduler.chunk,
            "queue": service.settings.queue,
        },
    }


def _file(name: str) -> Response:
    file = static_file(name)
    if file is None:
        raise ApiError(404, f"cannot find /page/{name}: no such file exists")
    content, kind = file
    return Response(content, media_type=f"{kind}; charset=utf-8", headers=HEADERS)
