"""Tables of the formulas, and of a measured pair beside them, for the terminal."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from rich.box import SIMPLE_HEAD
from rich.table import Table

from foreword.theory.formulas import expected_tokens, operations, speed_up
from foreword.theory.outlook import Outlook

if TYPE_CHECKING:
    from foreword.bench.stats import Interval
    from foreword.theory.report import HeatReport

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


def outlook_table(outlook: Outlook) -> Table:
    """Return tokens, operations and speed-up by draft tokens."""
    table = _empty("Leviathan et al. 2023: equation 1, theorems 3.11 and 3.8")
    for head in ("γ", "tokens a pass", "operations", "speed-up"):
        table.add_column(head, justify="right", no_wrap=True)
    table.add_column("")
    speeds = outlook.speeds
    for gamma in range(1, ROWS + 1):
        table.add_row(
            str(gamma),
            f"{expected_tokens(outlook.alpha, gamma):.2f}",
            f"{operations(outlook.alpha, gamma):.2f}×",
            f"{speeds[gamma]:.2f}×",
            bar(speeds[gamma]),
        )
    return table


def pair_table(heat: HeatReport) -> Table:
    """Return the formulas beside the measured passes of one temperature."""
    table = _empty(f"temperature {heat.temperature:g}")
    table.caption = CAPTION
    table.caption_justify = "left"
    heads = ("γ", "eq. 1", "tokens", "error", "thm 3.8", "scoring", "both", "clock")
    for head in heads:
        table.add_column(head, justify="right", no_wrap=True)
    table.add_column("", no_wrap=True)
    for point in heat.points:
        speed = point.speed
        table.add_row(
            str(point.gamma),
            f"{point.formula:.2f}",
            _interval(point.tokens),
            _percent(point.error),
            f"{point.theorem:.2f}×",
            f"{point.with_scoring:.2f}×",
            f"{point.with_tokens:.2f}×",
            _interval(speed) if speed else "–",
            bar(point.with_tokens),
        )
    return table


def surface_table(outlook: Outlook) -> Table:
    """Return the speed-up by acceptance and draft tokens; losses are red."""
    table = _empty("speed-up by acceptance and draft tokens, at this cost")
    table.add_column("α", justify="right")
    for gamma in GAMMAS:
        table.add_column(f"γ={gamma}", justify="right")
    for alpha in _tenths():
        speeds = [
            speed_up(expected_tokens(alpha, gamma), gamma, outlook.cost)
            for gamma in GAMMAS
        ]
        table.add_row(f"{alpha:.1f}", *map(_coloured, speeds))
    return table


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
    shown = "█" * min(length, BAR) + "▓" * max(0, length - BAR)
    return shown.ljust(BAR) + ("▏" if length <= BAR else "")


def _tenths() -> Iterator[float]:
    return (step / 10 for step in range(1, 10))


def _coloured(speed: float) -> str:
    style = "green" if speed >= 1 else "red"
    return f"[{style}]{speed:.2f}[/]"


def _interval(one: Interval) -> str:
    return f"{one.mid:.2f} ({one.low:.2f}–{one.high:.2f})"


def _percent(one: Interval) -> str:
    return f"{one.mid:+.0%} ({one.low:+.0%} to {one.high:+.0%})"


def _empty(title: str) -> Table:
    return Table(
        title=title,
        title_justify="left",
        box=SIMPLE_HEAD,
        padding=(0, 1, 0, 0),
        pad_edge=False,
    )
