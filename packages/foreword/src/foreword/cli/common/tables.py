"""Tables of reports: rows of figures, written for the terminal or as JSON.

Knows rich, which is imported when a table is drawn; knows no report.
"""

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any, Generic, Literal, TypeVar

if TYPE_CHECKING:
    from rich.table import Table as Drawn
    from rich.text import Text

Row = TypeVar("Row")


@dataclass(frozen=True)
class Column(Generic[Row]):
    """One figure of every row: its head, and how it is written."""

    head: str
    cell: "Callable[[Row], str | Text]"
    """Text with rich's markup, or a finished Text."""
    justify: Literal["left", "right"] = "right"
    no_wrap: bool = False
    folds: bool = False
    """Whether long text is broken anywhere instead of cut."""
    style: str = ""
    ratio: int | None = None
    """Share of the width that is left over."""


def name_column(head: str, cell: "Callable[[Row], str | Text]") -> Column[Row]:
    """Return a first column: names, which are never broken."""
    return Column(head, cell, justify="left", no_wrap=True)


def figure_column(head: str, cell: "Callable[[Any], str | Text]") -> Column[Any]:
    """Return a column of figures, which are never broken."""
    return Column(head, cell, no_wrap=True)


@dataclass(frozen=True, slots=True)
class Look:
    """Lines and spaces of a table."""

    ruled: bool = True
    """Whether a line stands under the heads."""
    padding: tuple[int, int, int, int] = (0, 1, 0, 1)
    """Spaces above, right of, below and left of a cell."""
    pad_edge: bool = False
    header_style: str = "table.header"
    title_justify: Literal["left", "center"] = "center"
    """Place of the title, and of the caption."""


RULED = Look(padding=(0, 1, 0, 0))
"""A line under the heads, close columns: reports of measurements."""
BARE = Look(ruled=False, padding=(0, 2, 0, 0), pad_edge=True, header_style="bold")
"""No lines: short lists."""
WIDE = Look(pad_edge=True)
"""A line under the heads, and a space around each cell."""


@dataclass(frozen=True)
class Table(Generic[Row]):
    """Rows of one kind, and the columns they are written in; a console prints it."""

    rows: Sequence[Row]
    columns: Sequence[Column[Row]]
    title: str | None = None
    caption: str | None = None
    look: Look = RULED
    section: Callable[[Row], object] = lambda _: None
    """Neighbours whose values differ are parted by a space."""
    emphasis: Callable[[Row], str | None] = lambda _: None
    """Style of a whole row."""

    def __rich__(self) -> "Drawn":
        drawn = self._empty()
        for column in self.columns:
            drawn.add_column(
                column.head,
                justify=column.justify,
                no_wrap=column.no_wrap,
                overflow="fold" if column.folds else "ellipsis",
                style=column.style,
                ratio=column.ratio,
            )
        for number, row in enumerate(self.rows):
            if number and self.section(row) != self.section(self.rows[number - 1]):
                drawn.add_section()
            cells = [column.cell(row) for column in self.columns]
            drawn.add_row(*cells, style=self.emphasis(row))
        return drawn

    def _empty(self) -> "Drawn":
        from rich.box import SIMPLE_HEAD
        from rich.table import Table as Drawn

        look = self.look
        return Drawn(
            title=self.title,
            caption=self.caption,
            box=SIMPLE_HEAD if look.ruled else None,
            padding=look.padding,
            pad_edge=look.pad_edge,
            header_style=look.header_style,
            title_justify=look.title_justify,
            caption_justify=look.title_justify,
        )


def row_json(row: Any) -> dict[str, Any]:
    """Return a dataclass's fields as a dict; an interval is [low, mid, high]."""
    return {
        name: [value[end] for end in ENDS]
        if isinstance(value, dict) and tuple(value) == ENDS
        else value
        for name, value in asdict(row).items()
    }


ENDS = ("low", "mid", "high")
"""Fields of an interval, in their order."""


def share(value: float | None) -> str:
    """Return a share as percent, empty where there is none."""
    return "" if value is None else f"{value:.0%}"


def figure(value: float | None, digits: int = 2, *, missing: str = "") -> str:
    """Return a number with so many decimals, `missing` where there is none."""
    return missing if value is None else f"{value:.{digits}f}"
