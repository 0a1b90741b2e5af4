"""Records to learn from: JSON lines, each a conversation or a text, checked; and the part of them that is held out.

Knows files and what a record must be; knows nothing about tokens.
"""

from __future__ import annotations

import gzip
import json
from collections.abc import Iterator
from collections.abc import Sequence as List
from dataclasses import dataclass
from hashlib import blake2b
from pathlib import Path
from typing import Any

from foreword.errors import InvalidRequest

ANSWERS = "assistant"
"""The role whose turns are learnt."""
SHAPE = '{"messages": [{"role": "user", "content": "…"}, …]} or {"text": "…"}'


@dataclass(frozen=True, slots=True)
class Record:
    """A conversation, or a text (then there are no turns)."""

    turns: tuple[tuple[str, str], ...] = ()
    """(role, content) of each message."""
    text: str = ""
    source: str = ""
    """Where it comes from; figures are told apart by it."""
    cut: bool = False
    """The end was cut off: that it ends there is not to be learnt."""

    @property
    def opening(self) -> str:
        """What it begins with; records that begin alike are never parted by a split."""
        return self.turns[0][1] if self.turns else self.text[:200]

    @property
    def messages(self) -> list[dict[str, str]]:
        """The turns as chat templates take them."""
        return [{"role": role, "content": content} for role, content in self.turns]


def read(files: List[Path], *, answered: bool = True) -> list[Record]:
    """Every record of these JSON-lines files (.gz too), in order; empty lines are skipped.

    Other fields than messages, text, source and cut are ignored. Raises InvalidRequest, naming file and line, for what
    is not such a record, and (where `answered`) for a conversation in which nobody answers.
    """
    records = [_record(place, line, answered) for file in files for place, line in _lines(file)]
    if not records:
        raise InvalidRequest(
            f"there are no records in {', '.join(map(str, files)) or 'no files'}; each is a line {SHAPE}"
        )
    return records


def split(records: List[Record], held_out: int, seed: int = 0) -> tuple[list[Record], list[Record]]:
    """(to learn from, held out): about `held_out` records, of every source in proportion and at least one.

    Who is held out depends on seed and contents alone, so neither order nor new records move others much. Records that
    begin alike stay together. Raises InvalidRequest when nothing would be left to learn from.
    """
    if not held_out:
        return list(records), []
    groups: dict[str, dict[str, list[Record]]] = {}
    for record in records:
        groups.setdefault(record.source, {}).setdefault(_digest(seed, record.opening), []).append(record)
    apart: set[str] = set()
    for openings in groups.values():
        quota = max(1, round(held_out * sum(map(len, openings.values())) / len(records)))
        for digest in sorted(openings)[:-1]:  # the last stays: a source is never held out whole
            if quota <= 0:
                break
            apart.add(digest)
            quota -= len(openings[digest])
    sides: tuple[list[Record], list[Record]] = ([], [])
    for record in records:
        sides[_digest(seed, record.opening) in apart].append(record)
    if not sides[0]:
        raise InvalidRequest(
            f"{len(records)} records are too few to hold {held_out} out; give more data or hold out less"
        )
    return sides


def _digest(seed: int, text: str) -> str:
    return blake2b(f"{seed}\0{text}".encode(), digest_size=12).hexdigest()


def _lines(file: Path) -> Iterator[tuple[str, str]]:
    if not file.is_file():
        raise InvalidRequest(f"there is no file {file}; give JSON lines, each {SHAPE}")
    try:
        with gzip.open(file) if file.name.endswith(".gz") else file.open("rb") as stream:
            for number, line in enumerate(stream, 1):
                if line.strip():
                    yield f"{file}:{number}", line.decode("utf-8")
    except UnicodeDecodeError as error:
        raise InvalidRequest(f"{file} is not UTF-8 text: {error.reason} at byte {error.start} of a line") from error
    except (gzip.BadGzipFile, EOFError) as error:
        raise InvalidRequest(f"{file} is not a whole gzip file: {error}") from error


def _record(place: str, line: str, answered: bool) -> Record:
    try:
        found = json.loads(line)
    except json.JSONDecodeError as error:
        raise InvalidRequest(f"{place}: not JSON: {error.msg} at column {error.colno}") from error
    if not isinstance(found, dict) or ("messages" in found) == ("text" in found):
        raise InvalidRequest(f"{place}: a record is {SHAPE}, got {_shown(found)}")
    source, cut = found.get("source", ""), found.get("cut", False)
    if not isinstance(source, str) or not isinstance(cut, bool):
        raise InvalidRequest(f"{place}: source must be a text and cut true or false, got {source!r} and {cut!r}")
    if "text" in found:
        if not isinstance(found["text"], str) or not found["text"].strip():
            raise InvalidRequest(f"{place}: text must be a text that is not empty, got {_shown(found['text'])}")
        return Record(text=found["text"], source=source, cut=cut)
    turns = _turns(place, found["messages"])
    if answered and not any(role == ANSWERS and content for role, content in turns):
        raise InvalidRequest(f"{place}: there is nothing to learn in a conversation without a turn of the {ANSWERS}")
    return Record(turns=turns, source=source, cut=cut)


def _turns(place: str, messages: Any) -> tuple[tuple[str, str], ...]:
    if not isinstance(messages, list) or not messages:
        raise InvalidRequest(f"{place}: messages must be a list of one or more, got {_shown(messages)}")
    for number, message in enumerate(messages, 1):
        fields = (message.get("role"), message.get("content")) if isinstance(message, dict) else (None, None)
        if not all(isinstance(field, str) for field in fields) or not fields[0]:
            raise InvalidRequest(
                f"{place}: message {number} must have a role and a content, both texts: {_shown(message)}"
            )
    return tuple((message["role"], message["content"]) for message in messages)


def _shown(value: object) -> str:
    shown = json.dumps(value, ensure_ascii=False)
    return shown if len(shown) <= 80 else shown[:77] + "…"
