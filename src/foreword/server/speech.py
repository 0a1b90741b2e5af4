"""Provides the routes that transcribe sound: OpenAI's `/v1/audio/transcriptions` and `/v1/audio/translations`."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from email import message_from_bytes
from email.policy import HTTP
from typing import Any

from fastapi import APIRouter, Request
from fastapi.responses import PlainTextResponse, Response

from foreword.errors import InvalidRequest
from foreword.server.errors import ApiError
from foreword.server.service import Service
from foreword.server.wire import Json
from foreword.speech.options import Transcript
from foreword.types import SamplingParams

FORMATS = ("json", "text", "verbose_json")
NUMBERS = {"temperature": float, "seed": int, "max_tokens": int}
"""Fields that are sampling parameters."""
FORM: dict[str, Any] = {
    "requestBody": {
        "required": True,
        "content": {
            "multipart/form-data": {
                "schema": {
                    "type": "object",
                    "required": ["file"],
                    "properties": {
                        "file": {"type": "string", "format": "binary"},
                        "model": {"type": "string"},
                        "language": {"type": "string"},
                        "prompt": {"type": "string"},
                        "response_format": {"type": "string", "enum": list(FORMATS)},
                        "temperature": {"type": "number"},
                    },
                }
            }
        },
    }
}


def routes(service: Service) -> APIRouter:
    """Return the routes."""
    router = APIRouter()

    @router.post("/v1/audio/transcriptions", tags=["OpenAI"], response_class=Response, openapi_extra=FORM)
    async def transcriptions(request: Request) -> Response:
        """Transcribe a sound file."""
        return await _answer(service, request, None)

    @router.post("/v1/audio/translations", tags=["OpenAI"], response_class=Response, openapi_extra=FORM)
    async def translations(request: Request) -> Response:
        """Translate a sound file into English text."""
        return await _answer(service, request, "translate")

    return router


async def _answer(service: Service, request: Request, task: str | None) -> Response:
    form = _form(request.headers.get("content-type", ""), await request.body())
    _, method = service.resolve(_text(form, "model"))
    shape = _text(form, "response_format") or "json"
    if shape not in FORMATS:
        raise ApiError(
            400, f"response_format must be one of {', '.join(FORMATS)}, got {shape!r}", param="response_format"
        )
    if "word" in form.get("timestamp_granularities[]", []):
        raise ApiError(400, "cannot give the times of words: only those of segments. Ask for 'segment'")
    if (_text(form, "stream") or "false").lower() != "false":
        raise ApiError(400, "cannot stream a transcript: it is sent whole. Leave 'stream' out", param="stream")
    if "file" not in form:
        raise ApiError(400, "cannot transcribe: there is no sound. Send it as the field 'file'", param="file")
    if service.draining:
        raise ApiError(503, "cannot serve this request: the server stops. Send it to another", retry_after=5)
    given = {name: _number(form, name) for name in NUMBERS if name in form}
    params = replace(SamplingParams(**{"temperature": 0, **given}), method=method, tenant=request.state.tenant)
    with service.limits.place(request.state.tenant, 1):
        found = await asyncio.to_thread(
            lambda: service.llm.transcribe(
                bytes(form["file"][0]),
                params,
                language=_text(form, "language") or None,
                prompt=_text(form, "prompt") or "",
                task=task,
                timestamps=shape == "verbose_json",
            )[0]
        )
    request.state.log = {"completion_tokens": len(found.tokens), "drafting": found.method}
    if shape == "text":
        return PlainTextResponse(found.text.strip() + "\n")
    return Json(_body(found, task or "transcribe", verbose=shape == "verbose_json"))


def _body(found: Transcript, task: str, *, verbose: bool) -> dict[str, Any]:
    body: dict[str, Any] = {"text": found.text, "usage": {"type": "duration", "seconds": found.duration}}
    if verbose:
        segments = [
            {"id": place, "start": one.start, "end": one.end, "text": one.text, "tokens": one.tokens}
            for place, one in enumerate(found.segments)
        ]
        body |= {"task": task, "language": found.language, "duration": found.duration, "segments": segments}
    return body


def _form(content_type: str, body: bytes) -> dict[str, list[Any]]:
    """Return the fields of a form: the bytes of a file, the text of any other. Raises ApiError for another body."""
    whole = message_from_bytes(b"Content-Type: " + content_type.encode("latin-1") + b"\r\n\r\n" + body, policy=HTTP)
    if whole.get_content_type() != "multipart/form-data" or not whole.is_multipart():
        raise ApiError(400, f"cannot read the body: its content-type is {content_type!r}. Send multipart/form-data")
    form: dict[str, list[Any]] = {}
    for part in whole.iter_parts():
        name = part.get_param("name", header="content-disposition")
        content = part.get_payload(decode=True)
        if isinstance(name, str) and isinstance(content, bytes):
            form.setdefault(name, []).append(content if name == "file" else content.decode("utf-8", "replace"))
    return form


def _text(form: dict[str, list[Any]], name: str) -> str | None:
    return form[name][0] if name in form else None


def _number(form: dict[str, list[Any]], name: str) -> float | int:
    try:
        return NUMBERS[name](form[name][0])
    except ValueError:
        raise InvalidRequest(f"{name} must be a number, got {form[name][0]!r}") from None
