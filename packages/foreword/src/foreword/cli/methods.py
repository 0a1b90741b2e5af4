"""`foreword methods`: the drafting methods of the registry."""

import json
import sys
from dataclasses import replace
from typing import Any

from foreword.cli.common import options, render
from foreword.cli.common.tables import BARE, Column, Table
from foreword.entries import package
from foreword.errors import ForewordError
from foreword.registry import AUTO, DEFAULT_MEMBERS, METHODS, OWN_METHODS, PLAIN, Method


def methods(as_json: options.AsJson = False) -> None:
    """List the drafting methods: what each does, and what it takes as --draft."""
    rows = [_own(name) for name in OWN_METHODS]
    if METHODS.installed():
        rows += _installed()
    if as_json:
        sys.stdout.write(json.dumps(rows) + "\n")
        return
    from rich.markup import escape

    columns = (
        Column[dict[str, Any]](
            "method", lambda row: f"[bold green]{row['name']}[/]", justify="left"
        ),
        Column[dict[str, Any]](
            "what it does", lambda row: escape(row["summary"]), justify="left"
        ),
        Column("--draft", _takes, justify="left"),
        Column[dict[str, Any]](
            "more", lambda row: f"[dim]{row['docs']}[/]", justify="left"
        ),
    )
    render.stdout().print(Table(rows, columns, look=BARE))


def _takes(row: dict[str, Any]) -> str:
    """Return what --draft names; what need not be given is dim."""
    if not row["draft"]:
        return "–"
    return row["draft"] if row["needed"] else f"[dim]({row['draft']})[/]"


def _own(name: str) -> dict[str, Any]:
    """Return the row of one of our methods, whose class is not imported."""
    about = OWN_METHODS[name]
    if ".ensemble." in about.home and name != AUTO:
        members = [OWN_METHODS[member] for member in DEFAULT_MEMBERS]
        source = max(members, key=lambda member: member.needs)
        summary = f"{about.summary}: {', '.join(DEFAULT_MEMBERS)}"
        about = replace(source, summary=summary)
    page = "choose-a-method.md" if name == PLAIN else f"methods/{name}.md"
    return _row(name, about, f"docs/{page}")


def _installed() -> list[dict[str, Any]]:
    """Return the rows of other packages' methods. Their code is imported."""
    rows = []
    for name, entry in sorted(METHODS.installed().items()):
        try:
            about = METHODS[name].about
        except ForewordError as error:
            about = Method(str(error))
        rows.append(_row(name, about, package(entry)))
    return rows


def _row(name: str, about: Method, docs: str) -> dict[str, Any]:
    return {
        "name": name,
        "summary": about.summary,
        "takes_draft": bool(about.takes),
        "draft": about.takes,
        "needed": about.needs,
        "docs": docs,
    }
