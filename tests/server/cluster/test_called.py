"""An application that is called without a connection."""

import asyncio
from contextlib import nullcontext

import pytest
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import PlainTextResponse, StreamingResponse
from starlette.routing import Route

from foreword.errors import InvalidRequest
from foreword_server.cluster.address import check_address
from foreword_server.cluster.called import called
from foreword_server.replicas.pool import Asked
from foreword_server.settings import Settings


async def echo(http_request: Request) -> PlainTextResponse:
    body = await http_request.body()
    name = http_request.query_params["name"]
    return PlainTextResponse(body + name.encode(), 201)


def application(left: list[str]) -> Starlette:
    async def endless(_: Request) -> StreamingResponse:
        async def numbers():
            try:
                number = 0
                while True:
                    number += 1
                    yield f"{number} "
            finally:
                left.append("left")

        return StreamingResponse(numbers())

    return Starlette(
        routes=[Route("/echo", echo, methods=["POST"]), Route("/endless", endless)]
    )


def test_response_comes_in_pieces():
    async def ask() -> list[object]:
        asked = Asked("POST", "/echo?name=x%20y", [], b"body ")
        return [piece async for piece in called(application([]), asked, float)]

    (status, headers), body = asyncio.run(ask())  # type: ignore[misc]
    assert status == 201
    assert dict(headers)[b"content-length"] == b"8"
    assert body == b"body x y"


@pytest.mark.parametrize(
    ("host", "port", "same"),
    [
        ("127.0.0.1", 8000, True),
        ("localhost", 8000, True),
        ("0.0.0.0", 8000, False),
        ("", 8000, False),
        ("127.0.0.1", 8001, False),
    ],
)
def test_serve_of_a_cluster_has_the_address_of_the_settings(host, port, same):
    """A server without keys would be open to the network."""
    expected = (
        nullcontext() if same else pytest.raises(InvalidRequest, match="already, at")
    )
    with expected:
        check_address(Settings(), host, port)


def test_pieces_of_one_moment_are_joined():
    """All that comes while the reader waits is one piece, and nothing is lost."""
    reached = asyncio.Event()

    async def count(_: Request) -> StreamingResponse:
        async def numbers():
            yield "0 "
            yield "1 "
            reached.set()

        return StreamingResponse(numbers())

    async def ask() -> list[object]:
        app = Starlette(routes=[Route("/", count)])
        pieces = called(app, Asked("GET", "/", []), float)
        found = [await anext(pieces)]
        await reached.wait()
        return found + [piece async for piece in pieces]

    _, *body = asyncio.run(ask())
    assert body == [b"0 1 "]


def test_leaving_ends_the_work():
    left: list[str] = []

    async def ask() -> list[object]:
        pieces = called(application(left), Asked("GET", "/endless", []), float)
        found = [await anext(pieces) for _ in range(4)]
        assert left == []
        await pieces.aclose()  # type: ignore[attr-defined]
        return found

    _, *body = asyncio.run(ask())
    assert b"".join(body).startswith(b"1 2 3 ")  # type: ignore[arg-type]
    assert left == ["left"]
