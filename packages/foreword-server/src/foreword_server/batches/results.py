"""The answers of a file of requests: whole lines, appended, readable after a kill."""

import fcntl
import json
import os
from collections.abc import Container, Iterable
from dataclasses import dataclass, field
from io import FileIO
from pathlib import Path
from types import TracebackType
from typing import Any

from foreword.errors import ForewordError, InvalidRequest, words
from foreword_server.batches.lines import Line

GOOD = 200
"""Status of an answer that is kept when a file is continued; others are asked again."""


@dataclass(frozen=True, slots=True)
class Response:
    """What a route answered."""

    status: int
    request_id: str
    body: Any

    @property
    def is_good(self) -> bool:
        """Whether it holds an answer, not an error."""
        return self.status == GOOD

    @property
    def tokens(self) -> int:
        """Generated tokens, as the usage report of any dialect counts them."""
        usage = self.body.get("usage") if isinstance(self.body, dict) else None
        if not isinstance(usage, dict):
            return 0
        return usage.get("completion_tokens") or usage.get("output_tokens") or 0


@dataclass(slots=True)
class Counts:
    """Requests that have ended."""

    completed: int = 0
    failed: int = 0
    tokens: int = 0
    """Generated."""

    @property
    def ended(self) -> int:
        return self.completed + self.failed


@dataclass(slots=True)
class ResultFile:
    """A file of answers that one program writes at a time, from where it was left."""

    path: Path
    counts: Counts = field(default_factory=Counts)
    _file: FileIO | None = None

    def __enter__(self) -> "ResultFile":
        """Open the file. Raises InvalidRequest if it cannot be written alone."""
        try:
            self._file = self.path.open("ab", buffering=0)
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            self.__exit__()
            raise InvalidRequest(
                f"cannot write {self.path}: another program writes it. Wait for it, or "
                "give another file"
            ) from None
        except OSError as error:
            raise InvalidRequest(
                f"cannot write {self.path}: {words(error)}. Give another file"
            ) from error
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None = None,
        error: BaseException | None = None,
        trace: TracebackType | None = None,
    ) -> None:
        if self._file is not None:
            self._file.close()
            self._file = None

    def resume(self, lines: Iterable[Line], *, errors: bool = False) -> set[str]:
        """Return the custom_ids that have an answer; drop an incomplete last line and,
        unless `errors`, the errors, which are asked again.

        Raises InvalidRequest if the file holds anything else, or answers to other
        requests.
        """
        ids = {line.custom_id: line.id for line in lines}
        done: set[str] = set()
        dropped: set[int] = set()
        with self.path.open("rb") as file:
            for number, text in enumerate(file):
                if not text.endswith(b"\n"):
                    dropped.add(number)  # a kill cut it
                    continue
                custom_id, is_good = self._read(text, ids)
                if (is_good or errors) and custom_id not in done:
                    done.add(custom_id)
                    self.counts.completed += is_good
                    self.counts.failed += not is_good
                else:
                    dropped.add(number)
        if dropped:
            self._drop(dropped)
        return done

    def write(self, line: Line, response: Response) -> None:
        """Append the answer to a request, and count it.

        Raises ForewordError where the disk is full; what was written before stays.
        """
        record = {
            "id": line.id,
            "custom_id": line.custom_id,
            "response": {
                "status_code": response.status,
                "request_id": response.request_id,
                "body": response.body,
            },
            "error": None,
        }
        self._append(json.dumps(record, ensure_ascii=False).encode() + b"\n")
        if response.is_good:
            self.counts.completed += 1
        else:
            self.counts.failed += 1
        self.counts.tokens += response.tokens

    def _append(self, text: bytes) -> None:
        assert self._file is not None, "use it in a with statement"
        end = self._file.seek(0, os.SEEK_END)
        try:
            while text:  # a disk that is nearly full takes a part
                text = text[self._file.write(text) :]
        except OSError as error:
            self._file.truncate(end)
            count = self.counts.completed
            raise ForewordError(
                f"cannot write {self.path}: {words(error)}. Its {count} answers are "
                "kept: run the same command again to go on"
            ) from error

    def _read(self, text: bytes, ids: dict[str, str]) -> tuple[str, bool]:
        try:
            record = json.loads(text)
            custom_id, line_id = record["custom_id"], record["id"]
            is_good = record["response"]["status_code"] == GOOD
        except (ValueError, KeyError, TypeError):
            raise InvalidRequest(
                f"cannot continue {self.path}: it holds something else than answers. "
                "Give another file"
            ) from None
        expected = ids.get(custom_id)
        # a request that failed may be mended
        if expected is None or (is_good and expected != line_id):
            raise InvalidRequest(
                f"cannot continue {self.path}: it holds the answer to another request "
                f"with the custom_id {custom_id!r}. Give another file"
            )
        return custom_id, is_good

    def _drop(self, numbers: Container[int]) -> None:
        """Leave lines out, whatever happens meanwhile."""
        partial = self.path.with_name(f".{self.path.name}.partial")
        partial.touch()
        partial.chmod(self.path.stat().st_mode)
        with self.path.open("rb") as file, partial.open("wb") as left:
            for number, text in enumerate(file):
                if number not in numbers:
                    left.write(text)
        partial.replace(self.path)
        self.__exit__()
        self.__enter__()
