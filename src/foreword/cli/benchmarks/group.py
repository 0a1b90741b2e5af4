"""`foreword bench`: the group of its measurements."""

from __future__ import annotations

from typing import Any

import typer
from typer.core import TyperGroup

from foreword.errors import InvalidRequest

DEFAULT = "text"
"""The measurement of `foreword bench` alone."""
FORMER = {
    "--limit": "limit",
    "--rules": "rules",
    "--batch": "batch 1,4,16,32",
    "--serve": "serve",
    "--task": "speech DIR --model MODEL",
    "--audio": "speech DIR --model MODEL",
}
"""Options of earlier versions that have become measurements of their own."""


class BenchGroup(TyperGroup):
    """Runs the default measurement where none is named."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Put the default before options; refuse the spellings of earlier versions."""
        named = bool(args) and (args[0] in self.commands or args[0] in HELP)
        if not named:
            for one in args:
                _check_former(one.partition("=")[0])
            args = [DEFAULT, *args]
        return super().parse_args(ctx, args)


HELP = ("-h", "--help")


def _check_former(option: str) -> None:
    """Raise InvalidRequest for an option that has become a measurement."""
    if option in FORMER:
        raise InvalidRequest(
            f"cannot use {option!r}: it is a measurement of its own. Run `foreword "
            f"bench {FORMER[option]}`"
        )


bench = typer.Typer(
    name="bench",
    cls=BenchGroup,
    rich_markup_mode="rich",
    help="Measure all methods, plain decoding and transformers on this machine, in one "
    "interleaved run; or what a command says. Without one, it is [bold]text[/bold].",
)
