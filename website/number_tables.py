"""Markdown tables of runs: rows selected, columns spread, cells rounded."""

from __future__ import annotations

import textwrap
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from website.runs import Row, Run

LABELS = {
    "plain": "Foreword, plain",
    "lm": "Foreword, draft model (`lm`)",
    "ngram": "Foreword, prompt lookup (`ngram`)",
    "oracle": "a free drafter (oracle)",
    "transformers.generate": "transformers, `generate`",
    "transformers.assisted": "transformers, `assistant_model`",
    "transformers.lookup": "transformers, prompt lookup",
    "transformers.compiled": "transformers, compiled",
    "openvino.generate": "OpenVINO, plain",
    "openvino.assisted": "OpenVINO, draft model",
    "openvino.lookup": "OpenVINO, prompt lookup",
    "llamacpp.generate": "llama.cpp, plain",
    "llamacpp.assisted": "llama.cpp, draft model",
    "llamacpp.lookup": "llama.cpp, prompt lookup",
    "foreword.server": "Foreword",
    "foreword.server.none": "Foreword, no drafts",
    "foreword.without_http": "Foreword, without HTTP",
    "transformers.server": "transformers",
    "openvino.server": "OpenVINO",
    "openvino.server.draft": "OpenVINO, draft model",
    "llamacpp.server": "llama.cpp",
    "llamacpp.server.draft": "llama.cpp, draft model",
}
"""Name of a row -> what a reader sees. Other names are methods of ours."""
WIDTH = 120
"""Columns of a line of Markdown."""


@dataclass(frozen=True, slots=True)
class Selection:
    """What a region shows of its runs."""

    rows: tuple[str, ...] = ()
    """Values of the first key, in this order; none: all."""
    columns: tuple[str, ...] = ()
    """Columns in this order; none: all."""
    by: tuple[str, ...] = ()
    """Keys whose values become columns."""
    only: Mapping[str, str] | None = None
    """Key -> the value that rows must have."""
    under: float | None = None
    """Keep rows whose first figure is below this."""


def table(runs: Sequence[Run], selection: Selection) -> str:
    """Return the table of the runs, and a line on how each was made."""
    first = runs[0]
    several = len(runs) > 1
    heads = {"machine": "machine", **first.columns} if several else first.columns
    keys = ("machine", *first.keys) if several else first.keys
    shown = selection.columns or tuple(heads)
    rows = [
        {"machine": run.short, **row}
        for run in runs
        for row in run.rows
        if _selected(row, run.keys[0], selection)
    ]
    if selection.rows:
        rows.sort(key=lambda row: selection.rows.index(row[first.keys[0]]))
    labels = [key for key in shown if key in keys and key not in selection.by]
    figures = [key for key in shown if key not in keys]
    if selection.under is not None:
        under = selection.under
        rows = [row for row in rows if _middle(row.get(figures[0]), under) < under]
    lines = _lines(rows, labels, figures, selection.by, heads)
    made = [_made(run, rows, several=several) for run in runs]
    return "\n".join([*lines, "", "\n\n".join(made)])


def _selected(row: Row, first: str, selection: Selection) -> bool:
    if selection.rows and row.get(first) not in selection.rows:
        return False
    only = selection.only or {}
    return all(str(row.get(key)) == value for key, value in only.items())


def _middle(value: Any, default: float) -> float:
    if isinstance(value, list):
        return value[1]
    return default if value is None else value


def _lines(
    rows: Sequence[Row],
    labels: Sequence[str],
    figures: Sequence[str],
    by: Sequence[str],
    heads: Mapping[str, str],
) -> list[str]:
    """Return the lines of the table; a row's figures are spread over values of `by`."""
    spread = list(dict.fromkeys(tuple(row.get(key) for key in by) for row in rows))
    cells: dict[tuple[Any, ...], dict[tuple[Any, ...], Row]] = {}
    for row in rows:
        label = tuple(row.get(key) for key in labels)
        cells.setdefault(label, {})[tuple(row.get(key) for key in by)] = row
    titles = [heads[key] for key in labels]
    titles += [_title(key, values, by, heads) for values in spread for key in figures]
    if by and len(figures) == len(labels) == 1:
        # One figure: its name goes to the corner, so that headings stay short.
        corner = heads[figures[0]]
        titles = [corner, *(one.removeprefix(f"{corner}, ") for one in titles[1:])]
    marks = ["---"] * len(labels) + ["--:"] * (len(titles) - len(labels))
    body = [
        [
            *map(cell, labels, label),
            *(
                cell(key, found.get(values, {}).get(key))
                for values in spread
                for key in figures
            ),
        ]
        for label, found in cells.items()
    ]
    return [_line(one) for one in [titles, marks, *body]]


def _line(cells: Sequence[str]) -> str:
    return f"|{'|'.join(cells)}|"


def _title(
    key: str, values: Sequence[Any], by: Sequence[str], heads: Mapping[str, str]
) -> str:
    parts = [
        value if isinstance(value, str) else f"{heads[name]} = {cell(name, value)}"
        for name, value in zip(by, values, strict=True)
    ]
    return ", ".join([heads[key], *parts])


def cell(key: str, value: Any) -> str:
    """Return a value as a reader sees it."""
    if value is None:
        return ""
    if key == "name":
        return LABELS.get(value, value if " " in value else f"Foreword, `{value}`")
    if isinstance(value, str):
        return value
    if key == "temperature":
        return f"{value:g}"
    if isinstance(value, list):
        return _interval(*value)
    if key == "acceptance" or key.endswith("share"):
        return f"{value:.0%}"
    if isinstance(value, int):
        return f"{value:,}"
    return f"{value:,.{_digits(value)}f}"


def _digits(value: float) -> int:
    if abs(value) >= 100:
        return 0
    return 1 if abs(value) >= 10 else 2


def _interval(low: float | None, mid: float, high: float | None) -> str:
    if low is None:
        return f"{mid:.2f}"
    if low == mid == high:
        return f"{mid:g}"
    return f"{mid:.2f} ({low:.2f}–{high:.2f})"


def _made(run: Run, shown: Sequence[Row], *, several: bool) -> str:
    """Return a paragraph: machine, date, models, and the commands of the rows shown."""
    machine = run.machine[0].upper() + run.machine[1:]
    lead = f"*{run.short}*: {run.machine}" if several else machine
    note = f". {run.note}" if run.note else ":"
    values = {
        "",
        *(value for row in shown for value in row.values() if _is_text(value)),
    }
    commands = {key: one for key, one in run.commands.items() if key in values}
    named = len(commands) > 1
    text = ", ".join(
        f"{key} by `{one}`" if named else f"`{one}`" for key, one in commands.items()
    )
    return textwrap.fill(
        f"{lead}, {run.date}; {run.models}{note} {text}",
        WIDTH,
        break_long_words=False,
        break_on_hyphens=False,
    )


def _is_text(value: Any) -> bool:
    return isinstance(value, str)
