"""Runs of measurements: the JSON files of docs/numbers, read and checked."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import date
from pathlib import Path
from typing import Any

HELP = "docs/numbers/add-a-run.md lists the fields"
OTHER_FOLDERS = {"models"}
"""Folders of docs/numbers that hold no runs; other programs read them."""
BENCH_KEYS = ("name", "temperature")
BENCH_COLUMNS = {
    "name": "method",
    "temperature": "T",
    "tokens_per_second": "tokens/s",
    "tokens_per_pass": "tokens a pass",
    "acceptance": "accepted",
    "outside_forward_share": "outside forwards",
    "speedup_over_plain": "× plain",
    "decode_speedup_over_plain": "× plain, decoding alone",
    "speedup_over_generate": "× `generate`",
    "same_text_share": "same text",
    "load_seconds": "load, s",
    "first_token_seconds": "first token, s",
    "decode_tokens_per_second": "then tokens/s",
}
"""Columns of a report of `foreword bench --json`."""

Row = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Run:
    """One table of measurements, and what made it."""

    name: str
    """Name of its file, without the ending."""
    title: str
    commands: Mapping[str, str]
    """What made the rows: value of a key in a row -> command; "" for all rows."""
    date: str
    machine: str
    short: str
    """The machine in a few words, for headings and the chart."""
    models: str
    note: str
    """A sentence that every table of this run needs; may be empty."""
    keys: tuple[str, ...]
    """Columns that identify a row."""
    columns: Mapping[str, str]
    """Name of each column -> its heading."""
    rows: tuple[Row, ...]


class UnreadableRun(ValueError):
    """A file of docs/numbers that lacks a field, or has a wrong one."""

    def __init__(self, path: Path, field: str, problem: str) -> None:
        """Name the file, the field and the problem."""
        where = "/".join(path.parts[-4:])
        super().__init__(f'cannot read {where}: field "{field}" {problem}. {HELP}')


def read_run(path: Path) -> Run:
    """Return the run of a file: in our own form, or a report of `foreword bench`."""
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except json.JSONDecodeError as error:
        raise UnreadableRun(path, "(whole file)", f"is not JSON: {error}") from error
    if not isinstance(found, dict):
        raise UnreadableRun(path, "(whole file)", "is not an object")
    if "settings" in found:
        found = _from_report(path, found)
    return _checked(path, found)


def read_runs(folder: Path) -> dict[str, Run]:
    """Return all runs of a folder, by name; each machine has a folder in it."""
    runs: dict[str, Run] = {}
    for path in sorted(folder.glob("*/*.json")):
        if path.parent.name in OTHER_FOLDERS:
            continue
        if path.stem in runs:
            raise UnreadableRun(path, "(name)", "is the name of another file, too")
        runs[path.stem] = read_run(path)
    return runs


def _from_report(path: Path, report: dict[str, Any]) -> dict[str, Any]:
    """Return a report of `foreword bench --json` in our own form."""
    machine = report.get("machine")
    if not isinstance(machine, dict) or "cpu" not in machine:
        raise UnreadableRun(path, "machine", 'of a report has no "cpu"')
    chip = machine.get("gpu", machine["cpu"])
    rows = _field(path, report, "rows", list)
    return {
        "title": report.get("title", report.get("target")),
        "machine": report.get("machine_in_words", chip),
        "models": report.get("models", report.get("target")),
        "keys": list(BENCH_KEYS),
        "columns": BENCH_COLUMNS,
        "rows": [{key: row.get(key) for key in BENCH_COLUMNS} for row in rows],
        **{
            key: report[key]
            for key in ("command", "date", "short", "note", "versions")
            if key in report
        },
    }


def _checked(path: Path, found: dict[str, Any]) -> Run:
    """Return the run, if every field has the form that it should have."""
    machine = _text(path, found, "machine")
    columns = _field(path, found, "columns", dict)
    keys = _field(path, found, "keys", list)
    for key in keys:
        if key not in columns:
            raise UnreadableRun(path, "keys", f"names {key!r}, which is not a column")
    rows = _field(path, found, "rows", list)
    _check_rows(path, keys, columns, rows)
    return Run(
        name=path.stem,
        title=_text(path, found, "title"),
        commands=_commands(path, found, rows),
        date=_date(path, found),
        machine=machine,
        short=found.get("short", machine),
        models=_text(path, found, "models"),
        note=found.get("note", ""),
        keys=tuple(keys),
        columns=columns,
        rows=tuple(rows),
    )


def _field(path: Path, found: Row, name: str, kind: type) -> Any:
    value = found.get(name)
    if name not in found:
        raise UnreadableRun(path, name, "is missing")
    if not isinstance(value, kind) or not value:
        raise UnreadableRun(path, name, f"is not a {kind.__name__} with content")
    return value


def _text(path: Path, found: Row, name: str) -> str:
    return _field(path, found, name, str)


def _commands(path: Path, found: Row, rows: Sequence[Row]) -> Mapping[str, str]:
    """Return the commands: one text, or a text for some value of a key."""
    if not isinstance(found.get("command"), dict):
        return {"": _text(path, found, "command")}
    many = _field(path, found, "command", dict)
    values = {value for row in rows for value in row.values() if isinstance(value, str)}
    for value, command in many.items():
        if not isinstance(command, str) or not command:
            raise UnreadableRun(path, "command", f"has no text for {value!r}")
        if value not in values:
            raise UnreadableRun(path, "command", f"names {value!r}, which no row has")
    return many


def _date(path: Path, found: Row) -> str:
    written = _text(path, found, "date")
    try:
        return date.fromisoformat(written).isoformat()
    except ValueError as error:
        raise UnreadableRun(path, "date", f"is not YYYY-MM-DD: {written}") from error


def _check_rows(path: Path, keys: list[str], columns: Row, rows: list[Any]) -> None:
    seen: set[tuple[Any, ...]] = set()
    for number, row in enumerate(rows, 1):
        place = f"rows, row {number}"
        if not isinstance(row, dict):
            raise UnreadableRun(path, place, "is not an object")
        for name, value in row.items():
            if name not in columns:
                raise UnreadableRun(path, place, f"has {name!r}, which is not a column")
            if not _is_cell(value):
                problem = f"is neither text, number nor interval: {value}"
                raise UnreadableRun(path, f"{place}, {name}", problem)
        identity = tuple(row.get(key) for key in keys)
        if identity in seen:
            raise UnreadableRun(path, place, f"repeats the keys {identity}")
        seen.add(identity)


def _is_cell(value: Any) -> bool:
    """Return whether a value is text, a number, null, or [low, middle, high]."""
    if not isinstance(value, list):
        return value is None or isinstance(value, str | int | float)
    if len(value) != 3 or not isinstance(value[1], int | float):
        return False
    low, middle, high = value
    if low is None and high is None:
        return True
    numbers = all(isinstance(one, int | float) for one in value)
    return numbers and low <= middle <= high
