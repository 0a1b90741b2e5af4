"""Routes that load and unload LoRA adapters while the server runs (vLLM's)."""

import asyncio
from pathlib import Path
from typing import Any

from fastapi import APIRouter, Request
from fastapi.responses import PlainTextResponse
from pydantic import BaseModel, ConfigDict

from foreword.errors import ModelError
from foreword.model.adapters.attach import fit
from foreword.model.adapters.folder import read_adapters
from foreword_server.body import content, parsed, takes
from foreword_server.errors import ApiError
from foreword_server.service import Service

MOST = 64
"""Adapters that are loaded at a time: each holds its matrices in float32."""
LONGEST = 128
"""Characters of a name, which stands in metrics and in every list of models."""


class AdapterBody(BaseModel):
    """An adapter to load, as a model of this name, or to unload."""

    model_config = ConfigDict(extra="allow")

    lora_name: str = ""
    lora_path: str = ""
    """Folder to load, below the one that `--lora-folder` names."""
    load_inplace: bool = False
    """Whether it may replace a loaded one of this name."""


def routes(service: Service) -> APIRouter:
    """Return the routes; without `--lora-folder` they answer that there are none.

    Requests hold the adapter that they began with, so they finish undisturbed.
    """
    router = APIRouter()
    changing = asyncio.Lock()
    described = {"tags": ["models"], "openapi_extra": takes(AdapterBody)}

    @router.post("/v1/load_lora_adapter", **described)
    async def load(http_request: Request) -> PlainTextResponse:
        """Load an adapter from a folder of the server."""
        body = await _body(service, http_request)
        if not body.lora_name or not body.lora_path:
            raise ApiError(400, "Both 'lora_name' and 'lora_path' must be provided.")
        async with changing:
            await _load(service, body)
        name = body.lora_name
        service.log.event("adapter loaded", adapter=name)
        return PlainTextResponse(f"Success: LoRA adapter '{name}' added successfully.")

    @router.post("/v1/unload_lora_adapter", **described)
    async def unload(http_request: Request) -> PlainTextResponse:
        """Unload an adapter; running requests keep it until they end."""
        body = await _body(service, http_request)
        if not body.lora_name:
            raise ApiError(
                400, "'lora_name' needs to be provided to unload a LoRA adapter."
            )
        name = body.lora_name
        async with changing:
            _unload(service, name)
        service.log.event("adapter unloaded", adapter=name)
        return PlainTextResponse(
            f"Success: LoRA adapter '{name}' removed successfully."
        )

    return router


async def _body(service: Service, http_request: Request) -> AdapterBody:
    """Read a body. Raises ApiError where clients may not change the adapters."""
    if service.settings.adapters is None:
        raise ApiError(
            404,
            "cannot change the adapters of this server: it was started without "
            "'--lora-folder'. Start it with that option",
        )
    text = await content(http_request)
    return await service.texts.run(
        http_request.state.tenant, len(text), lambda _: parsed(text, AdapterBody)
    )


async def _load(service: Service, body: AdapterBody) -> None:
    target, name = service.llm.target, body.lora_name
    if name == service.name or len(name) > LONGEST:
        raise ApiError(
            400,
            f"cannot name an adapter {name[:LONGEST]!r}: the model has this name, or "
            f"it is longer than {LONGEST} characters. Choose another",
        )
    if name not in target.adapters and len(target.adapters) >= MOST:
        raise ApiError(
            400, f"cannot load an adapter: {MOST} are loaded. Unload one first"
        )
    if name in target.adapters and not body.load_inplace:
        raise ApiError(
            400,
            f"The lora adapter '{name}' has already been loaded. If you want to load "
            "the adapter in place, set 'load_inplace' to True.",
            param="lora_name",
        )
    adapter = await asyncio.to_thread(_read, service, body)
    target.adapters = {**target.adapters, name: adapter}


def _unload(service: Service, name: str) -> None:
    target = service.llm.target
    rest = dict(target.adapters)
    if rest.pop(name, None) is None:
        raise ApiError(
            404, f"The lora adapter '{name}' cannot be found.", param="lora_name"
        )
    target.adapters = rest


def _read(service: Service, body: AdapterBody) -> Any:
    """Read the folder of an adapter. Raises ApiError, without the server's paths."""
    assert service.settings.adapters is not None
    root = service.settings.adapters.resolve()
    path = body.lora_path
    if (folder := _inside(root, path)) is None:
        raise ApiError(
            404,
            f"No adapter found for '{path}': the folder of '--lora-folder' has none "
            "of this path.",
            param="lora_path",
        )
    try:
        (read,) = read_adapters({body.lora_name: folder}).values()
        return fit(service.llm.target, read)
    except ModelError as error:
        message = str(error).replace(str(folder), path)
        raise ApiError(400, message, param="lora_path") from error


def _inside(root: Path, path: str) -> Path | None:
    """Return a folder in another, wherever links lead; None if there is none."""
    try:
        folder = (root / path).resolve()
        is_inside = folder.is_relative_to(root) and folder.is_dir()
    except (OSError, ValueError):
        return None
    return folder if is_inside else None
