"""Views of the demo: a question with its answers, the table of results, and both as
SVG.
"""

from __future__ import annotations

import io
import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from rich.console import Console, Group, RenderableType
from rich.padding import Padding
from rich.table import Table
from rich.terminal_theme import TerminalTheme
from rich.text import Text

from foreword.cli.common import render

if TYPE_CHECKING:
    from foreword.bench.report import Row
    from foreword.types import Delta, Origin

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
    pieces: list[tuple[str, Origin]] = field(default_factory=list)
    passes: int = 0
    """Rounds that emitted tokens, which equals target passes."""

    def add(self, delta: Delta) -> None:
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
        grid = Table.grid(padding=(0, 2, 0, 0), expand=True)
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


def table(rows: tuple[Row, ...]) -> Table:
    """Return the table of results, one row per method."""
    results = Table(box=None, padding=(0, 2, 0, 0), header_style="bold")
    results.add_column("method", style="cyan", no_wrap=True)
    for head in (
        "tokens/s",
        "tokens/pass",
        "acceptance",
        "× plain",
        "× generate",
        "same text",
    ):
        results.add_column(head, justify="right", no_wrap=True)
    fastest = max(row.tokens_per_second for row in rows)
    for row in rows:
        results.add_row(
            row.name,
            f"{row.tokens_per_second:.0f}",
            "–" if row.tokens_per_pass is None else f"{row.tokens_per_pass:.2f}",
            "–" if row.acceptance is None else f"{row.acceptance:.0%}",
            f"{row.speedup_over_plain.mid:.2f}",
            f"{row.speedup_over_generate.mid:.2f}"
            if row.speedup_over_generate
            else "–",
            {True: "yes", False: "no", None: "other draw"}[row.same_text],
            style="bold green" if row.tokens_per_second == fastest else "",
        )
    return results


def picture(scenes: list[Scene], figures: Table) -> str:
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
