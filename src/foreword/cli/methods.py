"""`foreword methods`: the ways to guess. Reads the registry; names none of them itself."""

from __future__ import annotations

import json
import sys
from typing import TYPE_CHECKING, Any

from foreword.cli import options, show
from foreword.errors import ForewordError

if TYPE_CHECKING:
    from foreword.draft import Drafter, Recipe


def methods(as_json: options.AsJson = False) -> None:
    """List the ways to guess: what each does, and what it takes as --draft."""
    from foreword.draft import METHODS, installed, method, package

    rows = [_row(name, method(name), f"docs/methods/{name}.md") for name in METHODS]
    for name, entry in sorted(installed().items()):
        try:
            rows.append(_row(name, method(name), package(entry)))
        except ForewordError as error:
            rows.append(_row(name, None, package(entry)) | {"summary": str(error)})
    if as_json:
        sys.stdout.write(json.dumps(rows) + "\n")
        return
    from rich.markup import escape
    from rich.table import Table

    table = Table("method", "what it does", "--draft", "more", box=None, padding=(0, 2, 0, 0), header_style="bold")
    for row in rows:
        takes = (row["draft"] if row["needed"] else f"[dim]({row['draft']})[/]") if row["draft"] else "–"
        table.add_row(f"[bold green]{row['name']}[/]", escape(row["summary"]), takes, f"[dim]{row['docs']}[/]")
    show.stdout().print(table)


def _row(name: str, drafter: type[Drafter] | Recipe | None, docs: str) -> dict[str, Any]:
    summary, takes, needs = (drafter.summary, drafter.takes, drafter.needs) if drafter else ("", "", False)
    return {"name": name, "summary": summary, "takes_draft": bool(takes), "draft": takes, "needed": needs, "docs": docs}
