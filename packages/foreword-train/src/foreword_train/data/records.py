"""Training records: checked JSON lines, conversations or texts, and their split."""

import gzip
import json
from collections.abc import Iterator, Sequence
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
    """A conversation, or a text (without turns)."""

    turns: tuple[tuple[str, str], ...] = ()
    """(role, content) of each message."""
    text: str = ""
    source: str = ""
    """Name of its source; metrics are reported by source."""
    cut: bool = False
    """True if its end was cut off, so that no end of text is learnt."""

    @property
    def opening(self) -> str:
        """Beginning of the record; a split keeps records with the same one together."""
        return self.turns[0][1] if self.turns else self.text[:200]

    @property
    def answers(self) -> list[int]:
        """Indices of the turns that are learnt."""
        return [at for at, (role, _) in enumerate(self.turns) if role == ANSWERS]

    @property
    def is_answered(self) -> bool:
        """Whether one of these turns has content."""
        return any(self.turns[at][1] for at in self.answers)

    @property
    def messages(self) -> list[dict[str, str]]:
        """The turns as chat templates take them."""
        return [{"role": role, "content": content} for role, content in self.turns]


def read(files: Sequence[Path], *, answered: bool = True) -> list[Record]:
    """Return every record of these JSON-lines files (.gz too), in order; empty lines
    are skipped.

    Other fields than messages, text, source and cut are ignored. Raises InvalidRequest,
    naming file and line, for an invalid record and (where `answered`) for a
    conversation without an answer.
    """
    records = [
        _record(place, line, answered) for file in files for place, line in _lines(file)
    ]
    if not records:
        raise InvalidRequest(
            "cannot read records: there are no records in "
            f"{', '.join(map(str, files)) or 'no files'}. "
            f"Give JSON lines, each {SHAPE}"
        )
    return records


def split(
    records: Sequence[Record], held_out: int, seed: int = 0
) -> tuple[list[Record], list[Record]]:
    """Return (training, held out): `held_out` records or a few less, of every source in
    proportion, or at least one.

    The split depends on seed and contents alone, so order and new records hardly change
    it. Records that begin alike stay together. Raises InvalidRequest when no training
    records would be left.
    """
    if not held_out:
        return list(records), []
    groups: dict[str, dict[str, list[Record]]] = {}
    for record in records:
        groups.setdefault(record.source, {}).setdefault(
            _digest(seed, record.opening), []
        ).append(record)
    apart: set[str] = set()
    room = held_out
    for _, openings in sorted(groups.items()):
        quota = max(
            1, round(held_out * sum(map(len, openings.values())) / len(records))
        )
        # the last stays: a source is never held out whole
        for digest in sorted(openings)[:-1]:
            size = len(openings[digest])
            if quota <= 0:
                break
            if size <= room:
                apart.add(digest)
                quota, room = quota - size, room - size
    sides: tuple[list[Record], list[Record]] = ([], [])
    for record in records:
        sides[_digest(seed, record.opening) in apart].append(record)
    if not sides[0]:
        raise InvalidRequest(
            f"cannot hold out {held_out} records: {len(records)} records are too few. "
            "Give more data or hold out less"
        )
    return sides


def _digest(seed: int, text: str) -> str:
    return blake2b(f"{seed}\0{text}".encode(), digest_size=12).hexdigest()


def _lines(file: Path) -> Iterator[tuple[str, str]]:
    if not file.is_file():
        raise InvalidRequest(
            f"cannot read {file}: no such file exists. Give JSON lines, each {SHAPE}"
        )
    try:
        with (
            gzip.open(file) if file.name.endswith(".gz") else file.open("rb") as stream
        ):
            for number, line in enumerate(stream, 1):
                if line.strip():
                    yield f"{file}:{number}", line.decode("utf-8")
    except UnicodeDecodeError as error:
        raise InvalidRequest(
            f"cannot read {file}: not UTF-8 ({error.reason} at byte {error.start} of a "
            "line). Convert it to UTF-8"
        ) from error
    except (gzip.BadGzipFile, EOFError) as error:
        raise InvalidRequest(
            f"cannot read {file}: not a complete gzip file ({error}). Compress it again"
        ) from error


def _record(label: str, line: str, answered: bool) -> Record:
    try:
        record = json.loads(line)
    except json.JSONDecodeError as error:
        raise InvalidRequest(
            f"cannot read {label}: not JSON ({error.msg} at column {error.colno}). "
            f"Give JSON lines, each {SHAPE}"
        ) from error
    if not isinstance(record, dict) or ("messages" in record) == ("text" in record):
        raise InvalidRequest(
            f"cannot read {label}: {_shown(record)} is not a record. Give {SHAPE}"
        )
    source, cut = record.get("source", ""), record.get("cut", False)
    if not isinstance(source, str) or not isinstance(cut, bool):
        raise InvalidRequest(
            f"cannot read {label}: 'source' must be a string and 'cut' true or false, "
            f"got {source!r} and {cut!r}"
        )
    if "text" in record:
        if not isinstance(record["text"], str) or not record["text"].strip():
            raise InvalidRequest(
                f"cannot read {label}: 'text' must be a string that is not empty, got "
                f"{_shown(record['text'])}"
            )
        return Record(text=record["text"], source=source, cut=cut)
    turns = _turns(label, record["messages"])
    whole = Record(turns=turns, source=source, cut=cut)
    if answered and not whole.is_answered:
        raise InvalidRequest(
            f"cannot train on {label}: it has no turn of the {ANSWERS}. Add an answer "
            "or remove it"
        )
    return whole


def _turns(label: str, messages: Any) -> tuple[tuple[str, str], ...]:
    if not isinstance(messages, list) or not messages:
        raise InvalidRequest(
            f"cannot read {label}: 'messages' must be a list of one or more, got "
            f"{_shown(messages)}"
        )
    for number, message in enumerate(messages, 1):
        fields = (
            (message.get("role"), message.get("content"))
            if isinstance(message, dict)
            else (None, None)
        )
        if not all(isinstance(field, str) for field in fields) or not fields[0]:
            raise InvalidRequest(
                f"cannot read {label}: message {number} must have 'role' and "
                "'content', both strings, "
                f"got {_shown(message)}"
            )
    return tuple((message["role"], message["content"]) for message in messages)


def _shown(value: object) -> str:
    shown = json.dumps(value, ensure_ascii=False)
    return shown if len(shown) <= 80 else shown[:77] + "…"
