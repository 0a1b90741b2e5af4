"""Options of `foreword serve` for uploaded files and batches."""

from functools import partial
from typing import Annotated

from foreword.cli.common import options

_option = partial(options.option, "Files and batches")

Files = Annotated[
    str | None,
    _option("--files", "Folder or URL of files and batches.", "FOLDER"),
]
MaxFile = Annotated[
    float, _option("--max-file", "Largest uploaded file, in MiB.", least=0.001)
]
MaxStored = Annotated[
    float | None,
    _option("--max-stored", "MiB of one API key. Default: 50 files.", least=0.001),
]
MaxBatches = Annotated[
    int, _option("--max-batches", "Unfinished batches of one API key.", least=1)
]
