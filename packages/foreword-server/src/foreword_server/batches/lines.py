"""The requests of a file, one JSON object a line, checked before any is answered."""

import json
from collections.abc import Iterator
from dataclasses import dataclass
from hashlib import blake2b
from math import inf
from pathlib import Path
from typing import Any

from foreword.errors import InvalidRequest, words
from foreword_server.routes import DIALECTS

MEMBERS = ("custom_id", "method", "url", "body")
"""Members of a line."""
MOST_ID = 512
"""Characters of a custom_id."""
NAMED = 3
"""Faults. An error names this many and counts the others."""


@dataclass(frozen=True, slots=True)
class Line:
    """One request, and where it stands in its file."""

    custom_id: str
    url: str
    id: str
    """"batch_req_" and the hash of its path and body: equal requests have equal ids."""
    start: int
    length: int
    """Bytes."""


@dataclass(frozen=True, slots=True)
class Fault:
    """Why a line cannot be read."""

    line: int
    """Number, the first is 1."""
    code: str
    message: str


class RequestFile:
    """The requests of a file; bodies stay on disk until they are asked for."""

    def __init__(
        self,
        path: Path,
        endpoint: str | None = None,
        most: float = inf,
        longest: float = inf,
    ) -> None:
        """Read the file once; `endpoint`: the only path that it may name; `most`:
        requests that it may have; `longest`: bytes of one.

        Raises InvalidRequest if it cannot be read; lines that cannot are `faults`.
        """
        self.path = path
        self.lines: list[Line] = []
        self.faults: list[Fault] = []
        seen: set[str] = set()
        try:
            for number, start, text in _numbered(path):
                if most == len(self.lines) + len(self.faults):
                    message = f"it has more than {most} requests"
                    self.faults.append(Fault(number, "too_many_requests", message))
                    break
                line = _line(text, number, start, endpoint, longest)
                if isinstance(line, Line) and line.custom_id in seen:
                    message = f"another line has the custom_id {line.custom_id!r}"
                    line = Fault(number, "duplicate_custom_id", message)
                if isinstance(line, Fault):
                    self.faults.append(line)
                else:
                    seen.add(line.custom_id)
                    self.lines.append(line)
        except OSError as error:
            raise InvalidRequest(
                f"cannot read {path}: {error.strerror or words(error)}. Give a file of "
                "JSON lines"
            ) from error

    def check(self) -> None:
        """Raise InvalidRequest for lines that cannot be read, or without any."""
        if self.faults:
            named = "; ".join(
                f"line {fault.line}: {fault.message}" for fault in self.faults[:NAMED]
            )
            others = len(self.faults) - NAMED
            more = f"; and {others} more lines" if others > 0 else ""
            raise InvalidRequest(
                f"cannot answer {self.path}: {named}{more}. Mend them; nothing has "
                "begun"
            )
        if not self.lines:
            raise InvalidRequest(
                f"cannot answer {self.path}: it has no requests. Write one a line: "
                '{"custom_id": "1", "method": "POST", "url": "/v1/chat/completions", '
                '"body": {…}}'
            )

    def body(self, line: Line) -> dict[str, Any]:
        """Return the body of a request."""
        with self.path.open("rb") as file:
            file.seek(line.start)
            return json.loads(file.read(line.length))["body"]


def _numbered(path: Path) -> Iterator[tuple[int, int, bytes]]:
    """Yield the number, the place and the bytes of every line that is not empty."""
    start = 0
    with path.open("rb") as file:
        for number, text in enumerate(file, 1):
            if text.strip():
                yield number, start, text
            start += len(text)


def _line(
    text: bytes, number: int, start: int, endpoint: str | None, longest: float
) -> Line | Fault:
    """Return the request of a line, or why it cannot be read."""
    if len(text) > longest:
        message = f"it has more than {longest} bytes"
        return Fault(number, "request_too_large", message)
    try:
        record = json.loads(text)
    except (ValueError, RecursionError) as error:
        return Fault(number, "invalid_json_line", f"it is not JSON ({error})")
    if not isinstance(record, dict):
        return Fault(number, "invalid_json_line", "it is not a JSON object")
    custom_id, method, url, body = (record.get(name) for name in MEMBERS)
    if not isinstance(custom_id, str) or not 0 < len(custom_id) <= MOST_ID:
        return Fault(
            number,
            "invalid_custom_id",
            f"custom_id must be a text of 1 to {MOST_ID} characters",
        )
    if method not in (None, "POST"):
        return Fault(
            number, "invalid_method", f"method is {method!r}, and must be POST"
        )
    known = DIALECTS if endpoint is None else (endpoint,)
    if not isinstance(url, str) or url not in known:
        return Fault(
            number, "invalid_url", f"url is {url!r}, and must be {' or '.join(known)}"
        )
    if not isinstance(body, dict):
        return Fault(number, "missing_body", "body must be a JSON object")
    if body.get("stream"):
        return Fault(number, "invalid_body", "an answer in a file cannot be a stream")
    content = json.dumps([url, body], sort_keys=True).encode()
    name = blake2b(content, digest_size=12).hexdigest()
    return Line(custom_id, url, f"batch_req_{name}", start, len(text))
