"""Terminal output of an answer: coloured tokens, the legend, one line of statistics."""

import gc
import json
import os
import sys
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from itertools import groupby
from operator import itemgetter
from pathlib import Path
from typing import TYPE_CHECKING

from rich.console import Console
from rich.table import Table
from rich.text import Text

from foreword.cli.common import runtime
from foreword.cli.common.early import STDOUT
from foreword.notices import RECEIVER

if TYPE_CHECKING:
    from rich.progress import Progress

    from foreword.cli.common.session import Answer
    from foreword.types import Delta, Origin

STYLES: "dict[Origin, str]" = {"accepted": "green", "bonus": "bold"}
CONTROL = {
    **{code: 0x2400 + code for code in range(32) if chr(code) not in "\n\t"},
    127: 0x2421,
    # Unicode has no pictures of these; 0x9B begins an escape sequence
    **dict.fromkeys(range(128, 160), 0xFFFD),
}
"""Control characters and their Unicode pictures: no escape sequence gets through."""


def stdout() -> Console:
    """Return a console for tables and reports; 120 columns in a pipe."""
    return Console(width=None if sys.stdout.isatty() else 120, highlight=False)


def stderr() -> Console:
    """Return a console for warnings and errors."""
    return Console(stderr=True)


def notes() -> Console:
    """Return a console for notes and progress on stderr; silent with --quiet."""
    return Console(stderr=True, quiet=runtime.IS_QUIET.get())


@contextmanager
def loading(what: str = "loading the model") -> Iterator[None]:
    """Show a spinner on stderr, if it is a terminal, while a model loads.

    The phases of a large model, and the compilation of C code, once a machine, are
    named in any case. Garbage collection pauses meanwhile: what is imported and loaded
    stays, and searching it takes 0.2 s.
    """
    console = notes()
    status = console.status(what) if console.is_terminal and not console.quiet else None
    gc.disable()
    try:
        with status or nullcontext():
            token = RECEIVER.set(runtime.note if status is None else status.update)
            yield
            RECEIVER.reset(token)
    finally:
        gc.enable()


def written(figures: object, file: Path | None) -> bool:
    """Write figures to a file as JSON, if any; return whether that was stdout."""
    if file is None:
        return False
    text = json.dumps(figures, indent=2) + "\n"
    if file == STDOUT:
        sys.stdout.write(text)
        return True
    file.write_text(text, encoding="utf-8")
    return False


def facts(values: Mapping[str, object]) -> None:
    """Print names and values on stdout, one per line."""
    table = Table.grid(padding=(0, 2))
    table.add_column(style="bold", no_wrap=True)
    table.add_column(overflow="fold")
    for name, value in values.items():
        table.add_row(Text(printable(name)), Text(printable(_as_text(value))))
    stdout().print(table)


def _as_text(value: object) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, int):
        return f"{value:,}"
    if isinstance(value, Mapping):
        return "\n".join(f"{name}={inner}" for name, inner in value.items()) or "–"
    if isinstance(value, list):
        return ", ".join(map(str, value)) or "none"
    return "–" if value is None else str(value)


def use_colour(choice: bool | None) -> bool:
    """Return the user's choice, or whether stdout is a terminal that shows colours
    (https://no-color.org).
    """
    if choice is not None:
        return choice
    return (
        sys.stdout.isatty()
        and not os.environ.get("NO_COLOR")
        and os.environ.get("TERM") != "dumb"
    )


def coloured(pieces: "Iterable[tuple[str, Origin]]") -> Text:
    """Return text in which the style of each token shows its origin."""
    text = Text()
    for origin, run in groupby(pieces, key=itemgetter(1)):
        text.append(printable("".join(piece for piece, _ in run)), STYLES[origin])
    return text


def printable(text: str) -> str:
    """Return text of a model or a file with pictures in place of control characters."""
    return text.translate(CONTROL)


def legend() -> Text:
    """Return the legend of the colours."""
    return Text.assemble(
        ("■ accepted draft tokens", STYLES["accepted"]),
        "  ",
        ("■ tokens of the target", STYLES["bonus"]),
    )


class Writer:
    """Streaming output of deltas to stdout, in colour or as plain text."""

    def __init__(self, colour: bool) -> None:
        self._console = (
            Console(force_terminal=True, highlight=False) if colour else None
        )
        self._terminal = sys.stdout.isatty()

    def __call__(self, delta: "Delta") -> None:
        """Print what one round added."""
        if self._console:
            pieces = zip(delta.pieces, delta.origins, strict=True)
            self._console.print(coloured(pieces), end="", soft_wrap=True)
        else:
            sys.stdout.write(printable(delta.text) if self._terminal else delta.text)
        sys.stdout.flush()

    def end(self) -> None:
        """End the answer with a line end."""
        sys.stdout.write("\n")
        sys.stdout.flush()


def bar(*, quiet: bool = False, percent: bool = False) -> "Progress":
    """Return progress bars with the remaining time, on stderr; disabled with `quiet` or
    without a terminal.
    """
    from rich.progress import (
        BarColumn,
        MofNCompleteColumn,
        Progress,
        TaskProgressColumn,
        TextColumn,
        TimeRemainingColumn,
    )

    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        TaskProgressColumn() if percent else MofNCompleteColumn(),
        TimeRemainingColumn(),
    )
    console = notes()
    return Progress(
        *columns,
        console=console,
        transient=True,
        # otherwise output to a file or a pipe would be printed here
        redirect_stdout=sys.stdout.isatty(),
        disable=quiet or not console.is_terminal,
    )


def summary(answer: "Answer") -> str:
    """Return one line: tokens, speed, acceptance, seed and finish reason."""
    stats = answer.stats
    parts = [
        f"{stats.tokens} tokens",
        f"{stats.tokens / answer.seconds:.0f} tok/s" if answer.seconds else "",
        f"{stats.tokens_per_pass:.2f} tokens per pass",
        f"{stats.acceptance:.0%} of {stats.drafted} draft tokens accepted"
        if stats.drafted
        else "no draft tokens",
        _by_method(stats.by_method),
        f"seed {answer.seed}",
        _end(answer),
    ]
    return " · ".join(filter(None, parts))


def _by_method(tokens: Mapping[str, int]) -> str:
    """Return how many tokens each of several methods wrote, the most first."""
    ranked = sorted(tokens.items(), key=lambda pair: -pair[1])
    return ", ".join(f"{count} by {name}" for name, count in ranked)


def _end(answer: "Answer") -> str:
    if answer.interrupted:
        return "interrupted"
    if answer.finish_reason == "length":
        return "ended by length"
    stop = answer.stop_reason
    return (
        "ended by end of text"
        if stop is None
        else f"ended by stop {'token' if isinstance(stop, int) else 'string'} {stop!r}"
    )
