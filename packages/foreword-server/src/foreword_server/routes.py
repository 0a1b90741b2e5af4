"""Table of a server's routes, and which route a request takes."""

import re
from dataclasses import dataclass
from typing import Literal
from urllib.parse import unquote

from foreword_server.errors import ApiError
from foreword_server.page.files import NAMES
from foreword_server.settings import MEBIBYTE, Settings

READ = ("GET", "HEAD")
GET = ("GET",)
POST = ("POST",)
PAGE = "/page/{name:path}"
UPLOADS = "/v1/files"
SENT_BYTES = 16 * MEBIBYTE
"""Bytes, beyond a client's body, of what it has of an answer: 7 for each token."""
PARAMETER = re.compile(r"(\{\w+(?::path)?\})")
ID = r"[\w-]+"
NAME = r"(?:[\w.~:@!$&'()*+,;=/-]|%[0-9A-Fa-f]{2})+"
"""Name of a model: clients write its slashes and its colon as they are, or escaped."""
CONTROL = re.compile(r"[\x00-\x1f\x7f\\#]")


@dataclass(frozen=True, slots=True)
class Route:
    """What a server does with requests of a path and some methods."""

    path: str
    """Path as applications write it, with parameters in braces."""
    methods: tuple[str, ...] = READ
    access: Literal["open", "metrics", "key"] = "key"
    """Who is answered where keys are set: everybody, scrapers too, or keys alone."""
    body: Literal["", "json", "file"] = ""
    """What is read of a body; "": nothing, it is ignored."""
    loads: bool = False
    """Whether a model may be loaded for it."""
    generates: bool = False
    """Whether it takes places among the answers that run or wait."""
    operation: str = ""
    """Operation in OpenTelemetry's words, of an answer in one of the dialects."""
    anthropic: bool = False
    """Whether errors have Anthropic's shape."""
    done: bool = False
    """Whether a stream ends with "[DONE]"."""


def _open(path: str) -> Route:
    return Route(path, access="open")


def _dialect(path: str, operation: str = "chat", *, done: bool = False) -> Route:
    return Route(
        path,
        POST,
        body="json",
        loads=True,
        generates=True,
        operation=operation,
        anthropic=path == "/v1/messages",
        done=done,
    )


def _computed(path: str, *, anthropic: bool = False) -> Route:
    return Route(path, POST, body="json", loads=True, anthropic=anthropic)


def _sound(path: str) -> Route:
    return Route(path, POST, body="json", loads=True, generates=True)


ROUTES = (
    _open("/"),
    _open(PAGE),
    _open("/health"),
    _open("/ready"),
    _open("/version"),
    Route("/metrics", access="metrics"),
    Route("/openapi.json"),
    Route("/speculation", GET),
    _computed("/speculation/whatif"),
    Route("/v1/models"),
    Route("/v1/models/{name:path}"),
    _computed("/load_model"),
    Route("/v1/load_lora_adapter", POST, body="json"),
    Route("/v1/unload_lora_adapter", POST, body="json"),
    _computed("/tokenize"),
    _computed("/detokenize"),
    _dialect("/v1/chat/completions", done=True),
    _dialect("/v1/completions", "text_completion", done=True),
    _dialect("/v1/responses"),
    _dialect("/v1/messages"),
    _computed("/v1/messages/count_tokens", anthropic=True),
    _sound("/v1/audio/transcriptions"),
    _sound("/v1/audio/translations"),
    Route(UPLOADS, GET),
    Route(UPLOADS, POST, body="file"),
    Route("/v1/files/{file_id}", (*GET, "DELETE")),
    Route("/v1/files/{file_id}/content", GET),
    Route("/v1/batches", GET),
    Route("/v1/batches", POST, body="json"),
    Route("/v1/batches/{batch_id}", GET),
    Route("/v1/batches/{batch_id}/cancel", POST, body="json"),
)
"""Every path and method that is served. No other request gets beyond the gate."""
DIALECTS = tuple(route.path for route in ROUTES if route.operation)
"""Paths that answer in a dialect; lines of batches name them."""
UNKNOWN = Route("")
WRITES = "this server writes text. Ask a server of a model for that"
ELSEWHERE = {
    "/v1/embeddings": WRITES,
    "/v1/rerank": WRITES,
    "/v1/moderations": WRITES,
}
"""Paths of other kinds of models, and why no route takes them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Decision:
    """What a request is."""

    target: str
    """Path and query, byte for byte as the client sent them."""
    path: str
    """Decoded path."""
    route: Route
    needs_key: bool
    most: int
    """Bytes of a body."""
    refusal: ApiError | None = None
    """Why no route takes the request."""


def decided(
    method: str, raw_path: bytes, query: bytes = b"", settings: Settings | None = None
) -> Decision:
    """Return what a request is: the only place that reads its method and its path."""
    settings = settings or Settings()
    raw, search = raw_path.decode("latin-1"), query.decode("latin-1")
    path = unquote(raw)
    routes = _routes(raw) if _is_normal(path, search) else []
    route = next((one for one in routes if method in one.methods), None)
    refusal = None
    if not routes:
        reason = ELSEWHERE.get(path, "no such path")
        refusal = ApiError(404, f"cannot find {path}: {reason}")
    elif route is None:
        allow = ", ".join(sorted({name for one in routes for name in one.methods}))
        refusal = ApiError(
            405,
            f"cannot {method} {path}: the path does not take it. Use {allow}",
            allow=allow,
        )
    route = route or (routes or [UNKNOWN])[0]
    public = route.access == "open" or (
        route.access == "metrics" and settings.public_metrics
    )
    uploads = route.body == "file" and settings.files is not None
    resumed = SENT_BYTES if route.operation and settings.resume else 0
    return Decision(
        target=f"{raw}?{search}" if search else raw,
        path=path,
        route=route,
        needs_key=bool(settings.keys) and not public,
        most=settings.file if uploads else settings.body + resumed,
        refusal=refusal,
    )


def _routes(raw: str) -> list[Route]:
    return [route for pattern, route in TABLE if pattern.fullmatch(raw)]


def _is_normal(path: str, search: str) -> bool:
    """Return whether a decoded path has one meaning for every reader: no empty or dot
    segments, no marks that end or change a path elsewhere.
    """
    segments = path.removeprefix("/").split("/") if path != "/" else []
    return not (
        {"", ".", ".."} & {*segments} or CONTROL.search(path) or CONTROL.search(search)
    )


def _pattern(path: str) -> re.Pattern[str]:
    """Return the pattern of the paths of a route, as clients write them."""
    pieces = [
        piece if number % 2 else re.escape(piece)
        for number, piece in enumerate(PARAMETER.split(path))
    ]
    names = "|".join(map(re.escape, sorted(NAMES))) if path == PAGE else NAME
    for number in range(1, len(pieces), 2):
        several = pieces[number].endswith(":path}")
        pieces[number] = f"(?:{names})" if several else ID
    return re.compile("".join(pieces), re.ASCII)


TABLE = [(_pattern(route.path), route) for route in ROUTES]
