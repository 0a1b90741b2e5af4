"""Options of `foreword serve` for uploaded files and batches."""

from typing import Annotated

import typer

PANEL = "Files and batches"

Files = Annotated[
    str | None,
    typer.Option(
        "--files",
        help="Folder of uploaded files and batches, or a URL.",
        metavar="FOLDER",
        rich_help_panel=PANEL,
    ),
]
MaxFile = Annotated[
    float,
    typer.Option(
        "--max-file",
        help="Largest uploaded file, in MiB.",
        min=0.001,
        rich_help_panel=PANEL,
    ),
]
MaxStored = Annotated[
    float | None,
    typer.Option(
        "--max-stored",
        help="Files of one API key, in MiB. Default: 50 of the largest.",
        min=0.001,
        rich_help_panel=PANEL,
    ),
]
MaxBatches = Annotated[
    int,
    typer.Option(
        "--max-batches",
        help="Batches of one API key that have not ended.",
        min=1,
        rich_help_panel=PANEL,
    ),
]
