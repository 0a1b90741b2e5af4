"""Request bodies: read within time and size limits, then parsed in a worker thread."""

import asyncio
import json
import reprlib
from collections.abc import AsyncGenerator, AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import IO, Any, BinaryIO, TypeVar, cast

from fastapi import Request
from pydantic import BaseModel, BeforeValidator, ValidationError
from starlette.formparsers import MultiPartException, MultiPartParser
from starlette.requests import ClientDisconnect

from foreword.errors import InvalidRequest
from foreword_server.errors import ApiError
from foreword_server.limits import MOST_ITEMS

READ_SECONDS = 120.0
"""Seconds. A body has to arrive within this time: 16 MiB at 1.1 Mbit a second."""
MOST_FIELDS = 64
"""Fields of a form. Clients send ten."""
LONGEST_FIELD = 2**16
"""Bytes of a field other than the file; of a speech prompt, 200 tokens are read."""
REFERENCE = "#/components/schemas/{model}"
B = TypeVar("B", bound=BaseModel)


@dataclass(frozen=True, slots=True)
class Upload:
    """A file in a form."""

    name: str
    content: bytes
    """Empty where it was written to a file."""


def few(most: int) -> BeforeValidator:
    """Return the check that an object has at most `most` members, made first."""

    def check(value: object) -> object:
        if isinstance(value, dict) and len(value) > most:
            raise ValueError(
                f"it has {len(value)} members, and the limit is {most}. Send fewer"
            )
        return value

    return BeforeValidator(check)


async def content(http_request: Request) -> bytes:
    """Return a body's bytes. ApiError if it is not JSON, or too slow."""
    kind = http_request.headers.get("content-type")
    name = (kind or "").partition(";")[0].strip().lower()
    if name != "application/json" and not name.endswith("+json"):
        # a page of another origin may send other types without asking (CORS), and none
        # at all
        raise ApiError(
            400,
            f"cannot read the body: its content-type is {kind!r}. Send "
            "application/json",
        )
    return await read(http_request)


async def read(http_request: Request) -> bytes:
    """Return the bytes of a body. Raises ApiError if it arrives too slowly."""
    body = bytearray()
    async with _arriving("body"):
        async for chunk in http_request.stream():
            body += chunk
    return bytes(body)


@asynccontextmanager
async def _arriving(name: str) -> AsyncIterator[None]:
    """Wrap reading from a client. ApiError if it is too slow, or leaves."""
    try:
        async with asyncio.timeout(READ_SECONDS):
            yield
    except TimeoutError:
        raise ApiError(
            408,
            f"cannot read the {name}: it did not arrive in {READ_SECONDS:g} s. Send it "
            "again",
        ) from None
    except ClientDisconnect:
        raise ApiError(400, f"cannot read the {name}: the client left") from None


class _Form(MultiPartParser):
    """A parser of one file and few fields."""

    def __init__(
        self,
        http_request: Request,
        file: IO[bytes] | None,
        count: Callable[[int], None],
    ) -> None:
        self._file, self._count = file, count
        super().__init__(
            http_request.headers,
            self._counted(http_request.stream()),
            max_files=1,
            max_fields=MOST_FIELDS,
            max_part_size=LONGEST_FIELD,
        )

    async def _counted(self, body: AsyncIterator[bytes]) -> AsyncGenerator[bytes, None]:
        async for chunk in body:
            self._count(len(chunk))
            yield chunk

    def on_headers_finished(self) -> None:
        """Have the bytes of the file written where they are kept."""
        super().on_headers_finished()
        upload = self._current_part.file
        if self._file is not None and upload is not None:
            upload.file.close()
            upload.file = cast(BinaryIO, self._file)


async def form_of(
    http_request: Request,
    file: IO[bytes] | None = None,
    count: Callable[[int], None] = lambda _: None,
) -> dict[str, list[str | Upload]]:
    """Return the fields of a form.

    `file`: takes the content of an upload as it arrives, in place of memory. `count` is
    called with the size of each chunk. Raises ApiError for another body.
    """
    kind = http_request.headers.get("content-type", "")
    if kind.partition(";")[0].strip().lower() != "multipart/form-data":
        raise ApiError(
            400,
            f"cannot read the body: its content-type is {reprlib.repr(kind)}. Send "
            "multipart/form-data",
        )
    try:
        async with _arriving("form"):
            fields = await _Form(http_request, file, count).parse()
    except MultiPartException as error:
        raise ApiError(
            400,
            f"cannot read the form: {error.message.rstrip('.')}. Send one file and few "
            "fields",
        ) from None
    form: dict[str, list[str | Upload]] = {}
    for name, value in fields.multi_items():
        if not isinstance(value, str):
            content = b"" if file else await value.read()
            value = Upload(value.filename or "", content)
        form.setdefault(name, []).append(value)
    if file is None:
        await fields.close()
    return form


def parsed(body: bytes, kind: type[B]) -> B:
    """Return a body of a kind. ApiError 400 names the first fault and field."""
    try:
        return kind.model_validate(_json(body))
    except ValidationError as error:
        raise _unreadable(error) from None


def items(body: bytes) -> int:
    """Return the most values that a JSON text can hold, without parsing it."""
    return 1 + sum(body.count(mark) for mark in (b",", b"[", b"{"))


def _json(body: bytes) -> Any:
    count = items(body)
    if count > MOST_ITEMS:
        raise ApiError(
            413,
            f"cannot read the body: it may hold {count} values, and the limit is "
            f"{MOST_ITEMS}. Send fewer",
        )
    try:
        return json.loads(body)
    except json.JSONDecodeError as error:
        raise ApiError(
            400,
            f"cannot read the body: it is not JSON at character {error.pos}: "
            f"{error.msg}",
        ) from None
    # no UTF-8, digits without end, or lists in lists in lists
    except (ValueError, RecursionError):
        raise ApiError(
            400,
            "cannot read the body: it is not JSON that can be parsed. Send one JSON "
            "object",
        ) from None


def _unreadable(error: ValidationError) -> ApiError:
    """Return the first fault of a body as an error that names its field."""
    faults = error.errors(include_url=False, include_input=False)
    # of a field that takes a text or a list, the fault of the list says more
    first = next((fault for fault in faults if fault["type"] == "too_long"), faults[0])
    where = ".".join(str(part) for part in first["loc"] if not _is_type(str(part)))
    context, reason = first.get("ctx", {}), first["msg"].removeprefix("Value error, ")
    if isinstance(cause := context.get("error"), InvalidRequest):
        return ApiError(400, str(cause), param=where or None)
    if first["type"] == "too_long":
        reason = (
            f"it has {context['actual_length']} items, and the limit is "
            f"{context['max_length']}. Send fewer"
        )
    subject = f"cannot read {where!r}" if where else "cannot read the body"
    return ApiError(400, f"{subject}: {reason}", param=where or None)


def _is_type(part: str) -> bool:
    """Return whether a part of a place in pydantic's errors is a type, not a field."""
    kinds = ("function-", "list[", "dict[", "literal[", "constrained-")
    return part in ("str", "int", "float", "bool", "list", "dict") or part.startswith(
        kinds
    )


# ---- the description


def takes(kind: type[BaseModel]) -> dict[str, Any]:
    """Return the entry of a route's OpenAPI description that says its body."""
    reference = {"$ref": REFERENCE.format(model=kind.__name__)}
    return {
        "requestBody": {
            "required": True,
            "content": {"application/json": {"schema": reference}},
        }
    }


def takes_form(*required: str, **fields: dict[str, Any]) -> dict[str, Any]:
    """Return the entry of a route that takes a form with a file and these fields."""
    properties = {"file": {"type": "string", "format": "binary"}} | fields
    schema = {"type": "object", "required": required, "properties": properties}
    content = {"multipart/form-data": {"schema": schema}}
    return {"requestBody": {"required": True, "content": content}}


def with_bodies(
    describe: Callable[[], dict[str, Any]], kinds: tuple[type[BaseModel], ...]
) -> dict[str, Any]:
    """Return an OpenAPI description with the schemas of bodies that routes read."""
    schema = describe()
    known = schema.setdefault("components", {}).setdefault("schemas", {})
    for kind in kinds:
        body_schema = kind.model_json_schema(ref_template=REFERENCE)
        known |= body_schema.pop("$defs", {})
        known[kind.__name__] = body_schema
    return schema
