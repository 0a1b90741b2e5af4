"""Provides an HTTP client for streamed answers that costs little beside a server on the
same cores.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Mapping
from typing import Any

from foreword.errors import ForewordError

DATA, DONE = b"data:", b"[DONE]"


class RequestFailed(ForewordError):
    """A request that a server refused or broke off."""


async def events(
    address: tuple[str, int], path: str, body: Mapping[str, Any], key: str = ""
) -> AsyncIterator[dict[str, Any]]:
    """POST a body as JSON, and yield each server-sent event as JSON, when it arrives.

    `key`: API key. Raises RequestFailed for a status that is not 200, an error within
    the stream, or one that ends early.
    """
    reader, writer = await asyncio.open_connection(*address)
    try:
        writer.write(_request(address, path, body, key))
        await writer.drain()
        status, chunked = await _head(reader)
        if status != 200:
            raise RequestFailed(
                f"cannot get an answer: status {status}. "
                f"{(await reader.read(400)).decode(errors='replace')}"
            )
        async for line in _lines(reader, chunked):
            if not line.startswith(DATA):
                continue
            data = line[len(DATA) :].strip()
            if data == DONE:
                return
            event = json.loads(data)
            if event.get("error"):
                raise RequestFailed(f"cannot get an answer: {event['error']}")
            yield event
    finally:
        writer.close()


def _request(
    address: tuple[str, int], path: str, body: Mapping[str, Any], key: str
) -> bytes:
    content = json.dumps(body).encode()
    lines = [
        f"POST {path} HTTP/1.1",
        f"Host: {address[0]}:{address[1]}",
        "Connection: close",
    ]
    lines += ["Content-Type: application/json", f"Content-Length: {len(content)}"]
    lines += [f"Authorization: Bearer {key}"] if key else []
    return "\r\n".join([*lines, "", ""]).encode() + content


async def _head(reader: asyncio.StreamReader) -> tuple[int, bool]:
    """Read status line and headers; return the status, and whether the body comes in
    chunks.
    """
    first = (await reader.readline()).split()
    if len(first) < 2:
        raise RequestFailed("cannot get an answer: the server closed the connection")
    chunked = False
    while line := (await reader.readline()).strip().lower():
        chunked |= line.startswith(b"transfer-encoding:") and b"chunked" in line
    return int(first[1]), chunked


async def _lines(reader: asyncio.StreamReader, chunked: bool) -> AsyncIterator[bytes]:
    """Yield the lines of a body (RFC 9112, section 7.1)."""
    rest = b""
    while part := await (_chunk(reader) if chunked else reader.read(2**16)):
        *whole, rest = (rest + part).split(b"\n")
        for line in whole:
            yield line
    if rest:
        yield rest


async def _chunk(reader: asyncio.StreamReader) -> bytes:
    """Read one chunk; b"" is the last."""
    try:
        size = int((await reader.readline()).split(b";")[0], 16)
        return (await reader.readexactly(size + 2))[:-2]
    except (ValueError, asyncio.IncompleteReadError) as error:
        raise RequestFailed("cannot read the answer: the stream ended early") from error
