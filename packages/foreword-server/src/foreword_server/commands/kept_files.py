"""Options of `foreword serve` for uploaded files and batches."""

from typing import Annotated, Any

import typer


def _option(name: str, help: str, **more: Any) -> Any:
    return typer.Option(name, help=help, rich_help_panel="Files and batches", **more)


Files = Annotated[
    str | None,
    _option("--files", "Folder or URL of files and batches.", metavar="FOLDER"),
]
MaxFile = Annotated[
    float, _option("--max-file", "Largest uploaded file, in MiB.", min=0.001)
]
MaxStored = Annotated[
    float | None,
    _option("--max-stored", "MiB of one API key. Default: 50 files.", min=0.001),
]
MaxBatches = Annotated[
    int, _option("--max-batches", "Unfinished batches of one API key.", min=1)
]
