"""Views of the demo: a question with its answers, the table, and both as SVG."""

import io
import re
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING

from rich.console import Console, Group, RenderableType
from rich.padding import Padding
from rich.table import Table as Grid
from rich.terminal_theme import TerminalTheme
from rich.text import Text

from foreword.cli.common import early, render
from foreword.cli.common.tables import BARE, Column, Table, figure, name_column, share

if TYPE_CHECKING:
    from foreword.types import Delta, Origin
    from foreword_lab.bench.report import Row

WIDTH = 96
"""Columns of the SVG."""
FONTS = "ui-monospace, SFMono-Regular, Menlo, Consolas, DejaVu Sans Mono, monospace"
NIGHT = TerminalTheme(
    (13, 17, 23),
    (201, 209, 217),
    [
        *((72, 79, 88), (255, 123, 114), (63, 185, 80), (210, 153, 34)),
        *((88, 166, 255), (188, 140, 255), (57, 197, 207), (177, 186, 196)),
    ],
)
"""Colours that are legible on a dark page and on a light one."""


@dataclass(slots=True)
class Line:
    """One answer while it is generated."""

    name: str
    pieces: "list[tuple[str, Origin]]" = field(default_factory=list)
    passes: int = 0
    """Rounds that emitted tokens, which equals target passes."""

    def add(self, delta: "Delta") -> None:
        """Append what one round emitted."""
        self.pieces += zip(delta.pieces, delta.origins, strict=True)
        self.passes += 1


@dataclass(slots=True)
class Scene:
    """A question and its answers."""

    kind: str
    question: str
    lines: list[Line] = field(default_factory=list)

    def line(self, name: str) -> Line:
        """Append an empty answer and return it."""
        self.lines.append(Line(name))
        return self.lines[-1]

    def __rich__(self) -> RenderableType:
        heading = Text(no_wrap=True, overflow="ellipsis")
        heading.append(f"{render.printable(self.kind)}  ", "bold cyan")
        heading.append(render.printable(" ".join(self.question.split())), "dim")
        grid = Grid.grid(padding=(0, 2, 0, 0), expand=True)
        grid.add_column(style="cyan", no_wrap=True, min_width=5)
        grid.add_column(ratio=1, overflow="fold")
        grid.add_column(style="dim", justify="right", no_wrap=True)
        for line in self.lines:
            grid.add_row(
                Text(render.printable(line.name)),
                render.coloured(line.pieces),
                f"{line.passes} passes",
            )
        return Group(heading, Padding(grid, (0, 0, 0, 2)))


def page_file(file: Path | None) -> None:
    """Check a file that is to hold a page: its folder, and the package of the page."""
    early.file(file)
    if file is not None:
        early.extra("serve", "foreword_server")


def table(rows: "tuple[Row, ...]") -> "Table[Row]":
    """Return the table of results, one row per method."""
    fastest = max(row.tokens_per_second for row in rows)
    same = {True: "yes", False: "no", None: "other draw"}

    def column(head: str, cell: "Callable[[Row], str]") -> "Column[Row]":
        return Column(head, cell, no_wrap=True)

    def over_generate(row: "Row") -> str:
        speedup = row.speedup_over_generate
        return figure(speedup and speedup.mid, missing="–")

    return Table(
        rows,
        (
            replace(name_column("method", lambda row: row.name), style="cyan"),
            column("tokens/s", lambda row: f"{row.tokens_per_second:.0f}"),
            column("tokens/pass", lambda row: figure(row.tokens_per_pass, missing="–")),
            column("acceptance", lambda row: share(row.acceptance) or "–"),
            column("× plain", lambda row: f"{row.speedup_over_plain.mid:.2f}"),
            column("× generate", over_generate),
            column("same text", lambda row: same[row.same_text]),
        ),
        look=BARE,
        emphasis=lambda row: "bold green" if row.tokens_per_second == fastest else None,
    )


def picture(scenes: list[Scene], figures: RenderableType) -> str:
    """Return the answers and the table as an SVG document."""
    paper = Console(
        record=True,
        width=WIDTH,
        file=io.StringIO(),
        force_terminal=True,
        color_system="truecolor",
        highlight=False,
    )
    paper.print(Padding(render.legend(), (1, 0)))
    for scene in scenes:
        paper.print(Padding(scene, (0, 0, 1, 0)))
    paper.print(figures)
    drawn = re.sub(
        r"@font-face \{.*?\}",
        "",
        paper.export_svg(title="foreword demo", theme=NIGHT),
        flags=re.DOTALL,
    )
    # many pages block fonts from other hosts
    return drawn.replace("Fira Code, monospace", FONTS)
