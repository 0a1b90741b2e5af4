"""How an answer looks: tokens coloured by where they came from, a legend, one line of figures.

Knows deltas and terminals; knows nothing about models.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable, Mapping
from itertools import groupby
from operator import itemgetter
from typing import TYPE_CHECKING

from rich.console import Console
from rich.table import Table
from rich.text import Text

if TYPE_CHECKING:
    from rich.progress import Progress

    from foreword.cli.answer import Answer
    from foreword.types import Delta, Origin

STYLES: dict[Origin, str] = {"accepted": "green", "bonus": "bold"}
CONTROL = {code: 0x2400 + code for code in range(32) if chr(code) not in "\n\t"} | {127: 0x2421}
"""A model may write escape sequences; a terminal is shown their pictures instead of obeying them."""


def stdout() -> Console:
    """For tables and reports; a pipe gets room for long lines."""
    return Console(width=None if sys.stdout.isatty() else 120, highlight=False)


def stderr() -> Console:
    """For notes, warnings and errors."""
    return Console(stderr=True)


def facts(found: Mapping[str, object]) -> None:
    """Names and values on stdout, one a line."""
    table = Table.grid(padding=(0, 2))
    table.add_column(style="bold", no_wrap=True)
    table.add_column(overflow="fold")
    for name, value in found.items():
        table.add_row(name, Text(_said(value)))
    stdout().print(table)


def _said(value: object) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, int):
        return f"{value:,}"
    if isinstance(value, Mapping):
        return "\n".join(f"{name}={inner}" for name, inner in value.items()) or "–"
    if isinstance(value, list):
        return ", ".join(map(str, value)) or "none"
    return "–" if value is None else str(value)


def wants_colour(choice: bool | None) -> bool:
    """What the user says; otherwise whether stdout is a terminal that shows colours (https://no-color.org)."""
    if choice is not None:
        return choice
    return sys.stdout.isatty() and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"


def coloured(pieces: Iterable[tuple[str, Origin]]) -> Text:
    """Text whose style says where each token came from."""
    text = Text()
    for origin, run in groupby(pieces, key=itemgetter(1)):
        text.append("".join(piece for piece, _ in run).translate(CONTROL), STYLES[origin])
    return text


def legend() -> Text:
    """What the colours mean."""
    return Text.assemble(
        ("■ accepted guesses", STYLES["accepted"]), "  ", ("■ the model's own tokens", STYLES["bonus"])
    )


class Writer:
    """Writes a stream of deltas to stdout as they come: coloured, or the text alone."""

    def __init__(self, colour: bool) -> None:
        self._console = Console(force_terminal=True, highlight=False) if colour else None
        self._terminal = sys.stdout.isatty()

    def __call__(self, delta: Delta) -> None:
        """Show what one round added."""
        if self._console:
            pieces = zip(delta.pieces, delta.origins, strict=True)
            self._console.print(coloured(pieces), end="", soft_wrap=True)
        else:
            sys.stdout.write(delta.text.translate(CONTROL) if self._terminal else delta.text)
        sys.stdout.flush()

    def end(self) -> None:
        """The answer is over."""
        sys.stdout.write("\n")
        sys.stdout.flush()


def bar(*, quiet: bool = False) -> Progress:
    """Bars with the time that is left, on stderr; none where that is no terminal, or where nobody wants one."""
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    columns = TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn()
    console = stderr()
    return Progress(*columns, console=console, transient=True, disable=quiet or not console.is_terminal)


def summary(answer: Answer) -> str:
    """One line: how much, how fast, how well guessed, which seed, why it ended."""
    stats = answer.figures
    parts = [
        f"{stats.tokens} tokens",
        f"{stats.tokens / answer.seconds:.0f} tok/s" if answer.seconds else "",
        f"{stats.tokens_per_pass:.2f} tokens per pass",
        f"{stats.acceptance:.0%} of {stats.drafted} guesses accepted" if stats.drafted else "no guesses",
        f"seed {answer.seed}",
        _end(answer),
    ]
    return " · ".join(filter(None, parts))


def _end(answer: Answer) -> str:
    if answer.interrupted:
        return "interrupted"
    if answer.finish_reason == "length":
        return "ended by length"
    said = answer.stop_reason
    return (
        "ended by end of text"
        if said is None
        else f"ended by stop {'token' if isinstance(said, int) else 'string'} {said!r}"
    )
