"""`foreword methods`: the ways to guess. Reads the registry; names none of them itself."""

from __future__ import annotations

import json
import sys

from foreword.cli import options, show


def methods(as_json: options.AsJson = False) -> None:
    """List the ways to guess: what each does, and what it takes as --draft."""
    from foreword.draft import METHODS, method

    found = {name: method(name) for name in METHODS}
    rows = [
        {
            "name": name,
            "summary": drafter.summary,
            "takes_draft": bool(drafter.takes),
            "draft": drafter.takes,
            "needed": drafter.needs,
            "docs": f"docs/methods/{name}.md",
        }
        for name, drafter in found.items()
    ]
    if as_json:
        sys.stdout.write(json.dumps(rows) + "\n")
        return
    from rich.table import Table

    table = Table("method", "what it does", "--draft", "more", box=None, padding=(0, 2, 0, 0), header_style="bold")
    for row in rows:
        takes = (row["draft"] if row["needed"] else f"[dim]({row['draft']})[/]") if row["draft"] else "–"
        table.add_row(f"[bold green]{row['name']}[/]", row["summary"], takes, f"[dim]{row['docs']}[/]")
    show.stdout().print(table)
