"""Options of `foreword serve` for LoRA adapters."""

from pathlib import Path
from typing import Annotated

import typer

from foreword.errors import InvalidRequest

Lora = Annotated[
    list[str] | None,
    typer.Option(
        "--lora",
        help="LoRA adapter, served as a model. Repeatable.",
        metavar="NAME=FOLDER",
        rich_help_panel="Server",
    ),
]
LoraFolder = Annotated[
    Path | None,
    typer.Option(
        "--lora-folder",
        help="Folder of LoRA adapters that clients may load and unload.",
        exists=True,
        file_okay=False,
        rich_help_panel="Server",
    ),
]


def folders(values: list[str], *, more: bool) -> dict[str, str] | None:
    """Return the folders of adapters by name; None where there will be none. `more`:
    whether clients may load some later.

    Raises InvalidRequest for one without a name, and for a name given twice.
    """
    paths: dict[str, str] = {}
    for value in values:
        name, _, folder = value.partition("=")
        if not name or not folder or name in paths:
            raise InvalidRequest(
                f"cannot read '--lora' {value!r}: each adapter has a name of its own "
                "and a folder. Give NAME=FOLDER"
            )
        paths[name] = folder
    return paths if paths or more else None
