"""The pictures of the demo: one question with its answers side by side, the table of figures, both as SVG.

Knows what they look like; knows nothing about models or measuring.
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

from foreword.cli import show

if TYPE_CHECKING:
    from foreword.bench.report import Row
    from foreword.types import Delta, Origin

WIDTH = 96
"""Columns of a picture."""
FONTS = "ui-monospace, SFMono-Regular, Menlo, Consolas, DejaVu Sans Mono, monospace"
NIGHT = TerminalTheme(
    (13, 17, 23),
    (201, 209, 217),
    [
        *((72, 79, 88), (255, 123, 114), (63, 185, 80), (210, 153, 34)),
        *((88, 166, 255), (188, 140, 255), (57, 197, 207), (177, 186, 196)),
    ],
)
"""Colours that read well on a dark page and on a light one."""


@dataclass(slots=True)
class Line:
    """One answer while it is written."""

    name: str
    pieces: list[tuple[str, Origin]] = field(default_factory=list)
    passes: int = 0
    """Rounds that wrote, which is passes of the target."""

    def add(self, delta: Delta) -> None:
        """Take in what one round said."""
        self.pieces += zip(delta.pieces, delta.origins, strict=True)
        self.passes += 1


@dataclass(slots=True)
class Scene:
    """A question and its answers."""

    kind: str
    question: str
    lines: list[Line] = field(default_factory=list)

    def line(self, name: str) -> Line:
        """Begin one more answer."""
        self.lines.append(Line(name))
        return self.lines[-1]

    def __rich__(self) -> RenderableType:
        asked = Text(no_wrap=True, overflow="ellipsis")
        asked.append(f"{self.kind}  ", "bold cyan").append(" ".join(self.question.split()), "dim")
        grid = Table.grid(padding=(0, 2, 0, 0), expand=True)
        grid.add_column(style="cyan", no_wrap=True, min_width=5)
        grid.add_column(ratio=1, overflow="fold")
        grid.add_column(style="dim", justify="right", no_wrap=True)
        for line in self.lines:
            grid.add_row(line.name, show.coloured(line.pieces), f"{line.passes} passes")
        return Group(asked, Padding(grid, (0, 0, 0, 2)))


def table(rows: tuple[Row, ...]) -> Table:
    """The figures, one row for each way to decode."""
    found = Table(box=None, padding=(0, 2, 0, 0), header_style="bold")
    found.add_column("method", style="cyan", no_wrap=True)
    for head in ("tokens/s", "tokens/pass", "acceptance", "× plain", "× generate", "same text"):
        found.add_column(head, justify="right", no_wrap=True)
    fastest = max(row.tokens_per_second for row in rows)
    for row in rows:
        found.add_row(
            row.name,
            f"{row.tokens_per_second:.0f}",
            "–" if row.tokens_per_pass is None else f"{row.tokens_per_pass:.2f}",
            "–" if row.acceptance is None else f"{row.acceptance:.0%}",
            f"{row.speedup_over_plain.mid:.2f}",
            f"{row.speedup_over_generate.mid:.2f}" if row.speedup_over_generate else "–",
            {True: "yes", False: "no", None: "other draw"}[row.same_text],
            style="bold green" if row.tokens_per_second == fastest else "",
        )
    return found


def picture(scenes: list[Scene], figures: Table) -> str:
    """All of it as an SVG document."""
    paper = Console(
        record=True, width=WIDTH, file=io.StringIO(), force_terminal=True, color_system="truecolor", highlight=False
    )
    paper.print(Padding(show.legend(), (1, 0)))
    for scene in scenes:
        paper.print(Padding(scene, (0, 0, 1, 0)))
    paper.print(figures)
    drawn = re.sub(r"@font-face \{.*?\}", "", paper.export_svg(title="foreword demo", theme=NIGHT), flags=re.DOTALL)
    return drawn.replace("Fira Code, monospace", FONTS)  # pages do not load fonts from elsewhere, and need not
