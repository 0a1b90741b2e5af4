"""`foreword methods`: the drafting methods of the registry."""

from __future__ import annotations

import json
import sys
from importlib.metadata import entry_points
from operator import itemgetter
from typing import Any

from foreword.cli.common import options, render, source
from foreword.errors import ForewordError


def methods(as_json: options.AsJson = False) -> None:
    """List the drafting methods: what each does, and what it takes as --draft."""
    rows = [
        _ours(name, home) for name, home in source.table("draft", "METHODS").items()
    ]
    if {*entry_points(group=source.value("draft", "GROUP")).names} - {
        row["name"] for row in rows
    }:
        rows += _installed()
    if as_json:
        sys.stdout.write(json.dumps(rows) + "\n")
        return
    from rich.markup import escape
    from rich.table import Table

    table = Table(
        "method",
        "what it does",
        "--draft",
        "more",
        box=None,
        padding=(0, 2, 0, 0),
        header_style="bold",
    )
    for row in rows:
        takes = (
            (row["draft"] if row["needed"] else f"[dim]({row['draft']})[/]")
            if row["draft"]
            else "–"
        )
        table.add_row(
            f"[bold green]{row['name']}[/]",
            escape(row["summary"]),
            takes,
            f"[dim]{row['docs']}[/]",
        )
    render.stdout().print(table)


def _ours(name: str, home: str) -> dict[str, Any]:
    """Return the row of a method of ours from its source text: importing it would load
    torch.
    """
    summary, takes, needs = _described(home)
    if ".ensemble." in home:
        homes = source.table("draft", "METHODS")
        members = source.value("draft", "JOINED")
        _, takes, needs = max(
            (_described(homes[member]) for member in members), key=itemgetter(2)
        )
        summary = f"{summary}: {', '.join(members)}"
    return _row(name, summary, takes, needs, f"docs/methods/{name}.md")


def _described(home: str) -> tuple[str, str, bool]:
    """Return the summary of a drafter, what it takes as --draft, and whether it needs
    that.
    """
    module, _, kind = home.partition(":")
    summary, takes, needs = (
        source.attribute(module, kind, one) for one in ("summary", "takes", "needs")
    )
    return summary, takes, needs


def _installed() -> list[dict[str, Any]]:
    """Return the rows of other packages' methods. Their code is imported."""
    from foreword.draft import installed, method, package

    rows = []
    for name, entry in sorted(installed().items()):
        try:
            drafter = method(name)
            rows.append(
                _row(
                    name, drafter.summary, drafter.takes, drafter.needs, package(entry)
                )
            )
        except ForewordError as error:
            rows.append(_row(name, str(error), "", False, package(entry)))
    return rows


def _row(name: str, summary: str, takes: str, needs: bool, docs: str) -> dict[str, Any]:
    return {
        "name": name,
        "summary": summary,
        "takes_draft": bool(takes),
        "draft": takes,
        "needed": needs,
        "docs": docs,
    }
