"""What a package offers to the command line, by an entry point of the group GROUP."""

from collections.abc import Callable
from dataclasses import dataclass

import typer

GROUP = "foreword.commands"
"""Each entry point names a sequence of `Command`."""
GENERATE = "Generate"
INSPECT = "Inspect"
MEASURE = "Measure"
PREPARE = "Train and prepare"


@dataclass(frozen=True, slots=True)
class Command:
    """A command, or a group of them."""

    panel: str
    """Heading in the help."""
    name: str
    run: Callable[..., None] | typer.Typer
    examples: tuple[str, ...]
