"""Routes of files and batches: OpenAI's `/v1/files` and `/v1/batches`."""

import asyncio
import secrets
from collections.abc import Mapping, Sequence
from time import time
from typing import Annotated, Any, Literal

from fastapi import APIRouter, Query, Request
from fastapi.responses import FileResponse, Response
from pydantic import BaseModel, ConfigDict, Field, StringConstraints, ValidationError

from foreword_server.batches.jobs import Batches
from foreword_server.batches.store import BATCH, FILE, KEPT_SECONDS
from foreword_server.body import (
    Upload,
    content,
    few,
    form_of,
    parsed,
    takes,
    takes_form,
)
from foreword_server.errors import ApiError
from foreword_server.routes import DIALECTS, UPLOADS
from foreword_server.wire import Json

DAY = 24 * 60 * 60
"""Seconds. A batch that has not ended by then ends with the answers that it has."""
WINDOW = "24h"
PURPOSE = "batch"
MOST_LISTED = 100
"""Files on a page of a list, where a client gives no limit."""
FORM = takes_form(
    "file",
    "purpose",
    purpose={"type": "string", "enum": [PURPOSE]},
    **{"expires_after[seconds]": {"type": "integer"}},
)
Limit = Annotated[int, Query(ge=1, le=10_000)]
MOST_METADATA = 16
"""Members of the metadata of a batch, which describes it (OpenAI's number)."""
Key = Annotated[str, StringConstraints(max_length=64)]
Value = Annotated[str, StringConstraints(max_length=512)]
SHORTEST = 60 * 60
"""Seconds. A file is kept so long at least."""


class ExpiresAfter(BaseModel):
    """How long a file is kept (OpenAI's fields)."""

    anchor: Literal["created_at"] = "created_at"
    seconds: Annotated[int, Field(ge=SHORTEST, le=KEPT_SECONDS)] = KEPT_SECONDS


class BatchBody(BaseModel):
    """A batch to answer (OpenAI's fields)."""

    model_config = ConfigDict(extra="allow")

    input_file_id: str
    endpoint: str
    completion_window: str = WINDOW
    metadata: Annotated[dict[Key, Value], few(MOST_METADATA)] | None = None
    output_expires_after: ExpiresAfter = ExpiresAfter()


def routes(batches: Batches | None) -> APIRouter:
    """Return the routes; without batches they answer that there are none."""
    router = APIRouter()
    _add_files(router, batches)
    _add_batches(router, batches)
    return router


def _add_files(router: APIRouter, batches: Batches | None) -> None:
    @router.post(UPLOADS, tags=["OpenAI"], response_class=Response, openapi_extra=FORM)
    async def upload(http_request: Request) -> Response:
        """Keep a file of requests."""
        store, tenant = _kept(batches).store, http_request.state.tenant
        with store.upload(tenant) as count, store.scratch() as file:
            form = await form_of(http_request, file, count)
            about = store.add(tenant, _name(form), PURPOSE, file, _seconds(form))
            return Json(await store.kept(tenant, about))

    @router.get(UPLOADS, tags=["OpenAI"])
    async def files(
        http_request: Request, limit: Limit = MOST_LISTED, after: str | None = None
    ) -> Response:
        """List the files of this key, the newest first."""
        store = _kept(batches).store
        return Json(_page(store.all(http_request.state.tenant, FILE), limit, after))

    @router.get(UPLOADS + "/{file_id}", tags=["OpenAI"])
    async def about(http_request: Request, file_id: str) -> Response:
        """Describe a file."""
        store = _kept(batches).store
        return Json(store.about(http_request.state.tenant, file_id, FILE))

    @router.get(UPLOADS + "/{file_id}/content", tags=["OpenAI"])
    async def whole(http_request: Request, file_id: str) -> Response:
        """Send a file."""
        store, tenant = _kept(batches).store, http_request.state.tenant
        store.about(tenant, file_id, FILE)
        path = await store.fetched(tenant, file_id)
        return FileResponse(path, media_type="application/jsonl")

    @router.delete(UPLOADS + "/{file_id}", tags=["OpenAI"])
    async def delete(http_request: Request, file_id: str) -> Response:
        """Delete a file; a batch that needs it must have ended."""
        queue, tenant = _kept(batches), http_request.state.tenant
        queue.store.about(tenant, file_id, FILE)
        queue.check_unused(tenant, file_id)
        queue.store.delete(tenant, file_id)
        return Json({"id": file_id, "object": "file", "deleted": True})


def _add_batches(router: APIRouter, batches: Batches | None) -> None:
    path = "/v1/batches"

    @router.post(
        path, tags=["OpenAI"], response_class=Response, openapi_extra=takes(BatchBody)
    )
    async def create(http_request: Request) -> Response:
        """Queue a file of requests."""
        queue, tenant = _kept(batches), http_request.state.tenant
        text = await content(http_request)
        body = await asyncio.to_thread(parsed, text, BatchBody)
        _check(body)
        queue.store.about(tenant, body.input_file_id, FILE)
        batch = _new(body)
        await queue.add(tenant, batch)
        return Json(batch)

    @router.get(path, tags=["OpenAI"])
    async def all_batches(
        http_request: Request, limit: Limit = 20, after: str | None = None
    ) -> Response:
        """List the batches of this key, the newest first."""
        store = _kept(batches).store
        return Json(_page(store.all(http_request.state.tenant, BATCH), limit, after))

    @router.get(path + "/{batch_id}", tags=["OpenAI"])
    async def about(http_request: Request, batch_id: str) -> Response:
        """Describe a batch, and how far it is."""
        store = _kept(batches).store
        return Json(store.about(http_request.state.tenant, batch_id, BATCH))

    @router.post(path + "/{batch_id}/cancel", tags=["OpenAI"])
    async def cancel(http_request: Request, batch_id: str) -> Response:
        """End a batch with the answers that it has."""
        return Json(await _kept(batches).cancel(http_request.state.tenant, batch_id))


def _name(form: Mapping[str, Sequence[str | Upload]]) -> str:
    """Return the name of the file in a form. Raises ApiError for another form."""
    purpose, file = form.get("purpose", [None])[0], form.get("file", [None])[0]
    if purpose != PURPOSE:
        raise ApiError(
            400, f"purpose must be {PURPOSE!r}, got {purpose!r}", param="purpose"
        )
    if not isinstance(file, Upload):
        raise ApiError(
            400,
            "cannot keep a file: the form has none. Send it as the field 'file'",
            param="file",
        )
    return file.name


def _seconds(form: Mapping[str, Sequence[str | Upload]]) -> int:
    """Return how long a form wants its file kept. Raises ApiError for another time."""
    fields = {
        name: form[f"expires_after[{name}]"][0]
        for name in ExpiresAfter.model_fields
        if f"expires_after[{name}]" in form
    }
    try:
        return ExpiresAfter.model_validate(fields).seconds
    except ValidationError:
        raise ApiError(
            400,
            f"expires_after must be {SHORTEST} to {KEPT_SECONDS} seconds after "
            "'created_at'",
            param="expires_after",
        ) from None


def _kept(batches: Batches | None) -> Batches:
    """Return the batches. Raises ApiError 404 for a server that keeps none."""
    if batches is None:
        raise ApiError(
            404,
            "cannot keep files: this server has no folder for them. Start it with "
            "'--files DIR'",
        )
    return batches


def _check(body: BatchBody) -> None:
    """Raise ApiError for a batch that cannot be served."""
    if body.endpoint not in DIALECTS:
        raise ApiError(
            400,
            f"endpoint must be one of {', '.join(DIALECTS)}, got {body.endpoint!r}",
            param="endpoint",
        )
    if body.completion_window != WINDOW:
        raise ApiError(
            400,
            f"completion_window must be {WINDOW!r}, got {body.completion_window!r}",
            param="completion_window",
        )


def _new(body: BatchBody) -> dict[str, Any]:
    now = int(time())
    times = (
        "in_progress",
        "finalizing",
        "completed",
        "failed",
        "expired",
        "cancelling",
        "cancelled",
    )
    return {
        "id": f"{BATCH}{secrets.token_hex(12)}",
        "object": "batch",
        "endpoint": body.endpoint,
        "errors": None,
        "input_file_id": body.input_file_id,
        "completion_window": body.completion_window,
        "status": "validating",
        "output_file_id": None,
        "error_file_id": None,
        "created_at": now,
        "expires_at": now + DAY,
        **{f"{name}_at": None for name in times},
        "request_counts": {"total": 0, "completed": 0, "failed": 0},
        "metadata": body.metadata,
        "output_expires_after": body.output_expires_after.model_dump(),
    }


def _page(items: list[dict[str, Any]], limit: int, after: str | None) -> dict[str, Any]:
    """Return a page of a list: those after an id."""
    ids = [one["id"] for one in items]
    first = ids.index(after) + 1 if after in ids else 0
    data = items[first : first + limit]
    return {
        "object": "list",
        "data": data,
        "first_id": data[0]["id"] if data else None,
        "last_id": data[-1]["id"] if data else None,
        "has_more": first + limit < len(items),
    }
