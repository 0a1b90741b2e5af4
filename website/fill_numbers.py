"""Fill the tables of the README and the pages from docs/numbers, and draw the chart.

A region starts with a line `<!-- numbers: NAME … -->` and ends with `<!-- end -->`.
NAME is a file below docs/numbers without its ending, or several with commas between.
After it may stand `rows=`, `columns=`, `by=` and `only=key:value`, each a list with
commas, and `under=NUMBER`. number_tables.Selection describes them.
"""

from __future__ import annotations

import argparse
import re
import shlex
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from website.number_chart import PICTURE, draw, is_current
from website.number_tables import Selection, table
from website.runs import Run, UnreadableRun, read_runs

ROOT = Path(__file__).parents[1]
REGION = re.compile(
    r"^<!-- numbers: (?P<what>[^>]+) -->\n.*?^<!-- end -->$", re.DOTALL | re.MULTILINE
)


class WrongRegion(ValueError):
    """A region that names no run, or asks for what no table has."""


def main(arguments: Sequence[str] | None = None) -> None:
    """Write all regions and the chart; with --check, name what would change."""
    options = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    options.add_argument("--check", action="store_true", help="write nothing")
    options.add_argument("--root", type=Path, default=ROOT, help="repository")
    given = options.parse_args(arguments)
    try:
        stale = update(given.root, write=not given.check)
    except (UnreadableRun, WrongRegion) as error:
        sys.exit(f"error: {error}")
    if given.check and stale:
        sys.exit("\n".join([*stale, "differ from docs/numbers: run `make numbers`"]))


def update(root: Path, *, write: bool) -> list[str]:
    """Return the pages and pictures that differ from the runs; write them if asked."""
    runs = read_runs(root / "docs" / "numbers")
    stale = []
    for page in [root / "README.md", *sorted((root / "docs").rglob("*.md"))]:
        text = page.read_text(encoding="utf-8")
        filled = fill(text, runs, page.relative_to(root).as_posix())
        if filled == text:
            continue
        stale.append(page.relative_to(root).as_posix())
        if write:
            page.write_text(filled, encoding="utf-8")
    picture = root / PICTURE
    if not is_current(picture, runs):
        stale.append(PICTURE)
        if write:
            draw(picture, runs)
    return stale


def fill(text: str, runs: Mapping[str, Run], page: str) -> str:
    """Return the text of a page with every region filled."""

    def filled(region: re.Match[str]) -> str:
        what = region["what"].strip()
        try:
            content = _content(what, runs)
        except WrongRegion as error:
            raise WrongRegion(f"cannot fill {page}: {error}") from error
        return f"<!-- numbers: {what} -->\n{content.rstrip()}\n<!-- end -->"

    return REGION.sub(filled, text)


def _content(what: str, runs: Mapping[str, Run]) -> str:
    names, *rest = shlex.split(what)
    chosen = []
    for name in names.split(","):
        if name not in runs:
            raise WrongRegion(f"docs/numbers has no {name}.json")
        chosen.append(runs[name])
    selection = _selection(rest)
    known = {"machine", *chosen[0].columns}
    for key in (*selection.columns, *selection.by, *(selection.only or {})):
        if key not in known:
            raise WrongRegion(f"{names} has no column {key!r}")
    found = {row.get(run.keys[0]) for run in chosen for row in run.rows}
    for name in selection.rows:
        if name not in found:
            raise WrongRegion(f"{names} has no row {name!r}")
    return table(chosen, selection)


def _selection(words: list[str]) -> Selection:
    given = dict(word.split("=", 1) for word in words if "=" in word)
    unknown = [*(word for word in words if "=" not in word)]
    unknown += sorted(set(given) - {"rows", "columns", "by", "only", "under"})
    if unknown:
        raise WrongRegion(f"{unknown[0]!r} is none of rows, columns, by, only, under")

    def names(key: str) -> tuple[str, ...]:
        return tuple(given[key].split(",")) if key in given else ()

    return Selection(
        rows=names("rows"),
        columns=names("columns"),
        by=names("by"),
        only=dict(one.split(":", 1) for one in names("only")),
        under=float(given["under"]) if "under" in given else None,
    )


if __name__ == "__main__":
    main()
