"""Routes of OpenAI's `/v1/audio/transcriptions` and `/v1/audio/translations`."""

import reprlib
from concurrent.futures import Executor, ThreadPoolExecutor
from dataclasses import replace
from functools import partial
from typing import Any

from fastapi import APIRouter, Request
from fastapi.responses import PlainTextResponse, Response

from foreword.errors import InvalidRequest
from foreword.speech.options import Transcript
from foreword.types import SamplingParams
from foreword.wanted import Abandoned
from foreword_server.body import Upload, form_of, takes_form
from foreword_server.errors import ApiError, stopping
from foreword_server.leaving import Silence, while_connected
from foreword_server.service import Service
from foreword_server.wire import Json

FORMATS = ("json", "text", "verbose_json")
NUMBERS = {"temperature": float, "seed": int, "max_tokens": int}
"""Fields that are sampling parameters."""
THREADS = 8
"""Transcriptions at a time, their features in memory; more wait."""
TEXT = {"type": "string"}
FORM = takes_form(
    "file",
    model=TEXT,
    language=TEXT,
    prompt=TEXT,
    response_format=TEXT | {"enum": list(FORMATS)},
    temperature={"type": "number"},
)


def routes(service: Service) -> APIRouter:
    """Return the routes."""
    router, threads = APIRouter(), ThreadPoolExecutor(THREADS, "foreword-sounds")
    described: Any = dict(tags=["OpenAI"], response_class=Response, openapi_extra=FORM)

    @router.post("/v1/audio/transcriptions", **described)
    async def transcriptions(http_request: Request) -> Response:
        """Transcribe a sound file."""
        return await _answer(service, threads, http_request, None)

    @router.post("/v1/audio/translations", **described)
    async def translations(http_request: Request) -> Response:
        """Translate a sound file into English text."""
        return await _answer(service, threads, http_request, "translate")

    return router


async def _answer(
    service: Service, threads: Executor, http_request: Request, task: str | None
) -> Response:
    form = await form_of(http_request)
    named = service.resolve(_text(form, "model"))
    shape, sound = _shape(form), _sound(form)
    if service.draining:
        raise stopping()
    values = {name: _number(form, name) for name in NUMBERS if name in form}
    params = replace(
        SamplingParams(**{"temperature": 0, **values}),
        method=named.method,
        tenant=http_request.state.tenant,
    )
    transcribe = partial(
        service.llm.transcribe,
        sound,
        params,
        language=_text(form, "language") or None,
        prompt=_text(form, "prompt") or "",
        task=task,
        timestamps=shape == "verbose_json",
        max_seconds=service.settings.sound,
    )
    try:
        with service.limits.place(http_request.state.tenant, 1):
            (result,) = await while_connected(http_request, threads, transcribe)
    except Abandoned:
        service.metrics.left()
        return Silence()
    http_request.state.log = {
        "completion_tokens": len(result.tokens),
        "drafting": result.method,
    }
    if shape == "text":
        return PlainTextResponse(result.text.strip() + "\n")
    return Json(_body(result, task or "transcribe", verbose=shape == "verbose_json"))


def _shape(form: dict[str, list[Any]]) -> str:
    """Return the transcript's form, one of FORMATS, or raise ApiError."""
    shape = _text(form, "response_format") or "json"
    if shape not in FORMATS:
        raise ApiError(
            400,
            f"response_format must be one of {', '.join(FORMATS)}, got "
            f"{reprlib.repr(shape)}",
            param="response_format",
        )
    if "word" in form.get("timestamp_granularities[]", []):
        raise ApiError(
            400,
            "cannot give times of words: only segments have times. Ask for 'segment'",
        )
    if (_text(form, "stream") or "false").lower() != "false":
        raise ApiError(
            400,
            "cannot stream a transcript: it is sent whole. Leave 'stream' out",
            param="stream",
        )
    return shape


def _sound(form: dict[str, list[Any]]) -> bytes:
    """Return the bytes of the sound file. Raises ApiError if there is none."""
    if not isinstance(sound := form.get("file", [None])[0], Upload):
        raise ApiError(
            400,
            "cannot transcribe: the form has no sound. Send it as the field 'file'",
            param="file",
        )
    return sound.content


def _body(result: Transcript, task: str, *, verbose: bool) -> dict[str, Any]:
    body: dict[str, Any] = {
        "text": result.text,
        "usage": {"type": "duration", "seconds": result.duration},
    }
    if verbose:
        segments = [
            {
                "id": place,
                "start": one.start,
                "end": one.end,
                "text": one.text,
                "tokens": one.tokens,
            }
            for place, one in enumerate(result.segments)
        ]
        body |= {
            "task": task,
            "language": result.language,
            "duration": result.duration,
            "segments": segments,
        }
    return body


def _text(form: dict[str, list[Any]], name: str) -> str | None:
    value = form[name][0] if name in form else None
    if isinstance(value, Upload):
        raise ApiError(
            400, f"cannot read {name!r}: it is a file. Send it as text", param=name
        )
    return value


def _number(form: dict[str, list[Any]], name: str) -> float | int:
    try:
        return NUMBERS[name](form[name][0])
    except (ValueError, TypeError):
        raise InvalidRequest(
            f"{name} must be a number, got {reprlib.repr(form[name][0])}"
        ) from None
