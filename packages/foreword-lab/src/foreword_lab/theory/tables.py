"""Tables of the formulas, and of a measured pair beside them, for the terminal."""

from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from foreword.cli.common.tables import RULED, Column, Table, figure_column, name_column
from foreword_lab.theory.formulas import expected_tokens, operations, speed_up
from foreword_lab.theory.outlook import Outlook

if TYPE_CHECKING:
    from foreword_lab.theory.report import HeatReport, Point
    from foreword_train.report.interval import Interval

LEFT = replace(RULED, title_justify="left")
ROWS = 8
"""Rows of the table of an outlook, if nothing is measured."""
CAPTION = (
    "tokens a pass: eq. 1, measured, error of eq. 1. Speed-up: thm 3.8; with measured\n"
    "scoring; with measured tokens too (the bar); by the clock. 95 % intervals"
)
BAR = 6
"""Characters of a bar for each step of the target's plain speed."""
GAMMAS = (1, 2, 3, 4, 5, 6, 8, 12, 16)
"""Columns of the surface."""


def outlook_table(outlook: Outlook) -> Table[int]:
    """Return tokens, operations and speed-up by draft tokens."""
    alpha = outlook.alpha
    speeds = outlook.speeds

    def tokens(gamma: int) -> float:
        return expected_tokens(alpha, gamma)

    return Table(
        range(1, ROWS + 1),
        (
            figure_column("γ", str),
            _figure("tokens a pass", tokens),
            _times("operations", lambda gamma: operations(alpha, gamma)),
            _times("speed-up", speeds.__getitem__),
            Column("", lambda gamma: bar(speeds[gamma]), justify="left"),
        ),
        title="Leviathan et al. 2023: equation 1, theorems 3.11 and 3.8",
        look=LEFT,
    )


def pair_table(heat: "HeatReport") -> "Table[Point]":
    """Return the formulas beside the measured passes of one temperature."""
    return Table(
        heat.points,
        (
            figure_column("γ", lambda row: str(row.gamma)),
            _figure("eq. 1", lambda row: row.formula),
            figure_column("tokens", lambda row: row.tokens.text),
            figure_column("error", lambda row: _percent(row.error)),
            _times("thm 3.8", lambda row: row.theorem),
            _times("scoring", lambda row: row.with_scoring),
            _times("both", lambda row: row.with_tokens),
            figure_column("clock", _clock),
            name_column("", lambda row: bar(row.with_tokens)),
        ),
        title=f"temperature {heat.temperature:g}",
        caption=CAPTION,
        look=LEFT,
    )


def surface_table(outlook: Outlook) -> Table[float]:
    """Return the speed-up by acceptance and draft tokens; losses are red."""

    def column(gamma: int) -> Column[float]:
        def cell(alpha: float) -> str:
            tokens = expected_tokens(alpha, gamma)
            return _coloured(speed_up(tokens, gamma, outlook.cost))

        return Column(f"γ={gamma}", cell)

    return Table(
        [step / 10 for step in range(1, 10)],
        (Column("α", lambda alpha: f"{alpha:.1f}"), *map(column, GAMMAS)),
        title="speed-up by acceptance and draft tokens, at this cost",
        look=LEFT,
    )


def verdict(outlook: Outlook) -> str:
    """Return one sentence: the best draft, and from where drafting loses."""
    best, loses = outlook.best, outlook.loses_from
    pays = outlook.pays_from
    if pays is None:
        return "no number of draft tokens pays, whatever is accepted"
    limit = f"below α = {pays:.2f} none pays"
    if best == 0:
        return f"no number of draft tokens pays at this acceptance; {limit}"
    speed = outlook.speeds[best]
    edge = "" if loses is None else f"; from γ = {loses} on drafting loses"
    return f"best γ = {best}, {speed:.2f}×{edge}; {limit}"


def bar(speed: float) -> str:
    """Return a bar as long as the speed, with a mark at plain decoding's."""
    length = round(BAR * speed)
    text = "█" * min(length, BAR)
    text += "▓" * max(0, length - BAR)
    mark = "▏" if length <= BAR else ""
    return text.ljust(BAR) + mark


def _coloured(speed: float) -> str:
    style = "green" if speed >= 1 else "red"
    return f"[{style}]{speed:.2f}[/]"


def _clock(point: "Point") -> str:
    return point.speed.text if point.speed else "–"


def _percent(gap: "Interval") -> str:
    return f"{gap.mid:+.0%} ({gap.low:+.0%} to {gap.high:+.0%})"


def _figure(head: str, read: Callable[[Any], float]) -> Column[Any]:
    return figure_column(head, lambda row: f"{read(row):.2f}")


def _times(head: str, read: Callable[[Any], float]) -> Column[Any]:
    return figure_column(head, lambda row: f"{read(row):.2f}×")
