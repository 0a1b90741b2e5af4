"""`foreword train acceptance`: options and output of the training in
foreword.train.methods.acceptance.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Annotated

import typer

from foreword.cli.common import early, options, render, runtime
from foreword.cli.training.data import Files, Target

Out = Annotated[
    Path,
    typer.Option(
        help="Folder for the acceptance model.",
        metavar="DIR",
        callback=options.checked(early.folder),
    ),
]
Tokens = Annotated[
    int, typer.Option(help="Training tokens, approximately.", min=1000, metavar="N")
]
Length = Annotated[
    int,
    typer.Option(help="Tokens per block of packed records.", min=2, metavar="N"),
]
Seed = Annotated[
    int, typer.Option(help="Seed of the held-out split.", min=0, metavar="N")
]


def acceptance(
    *,
    target: Target = None,
    draft: options.DraftName = None,
    data: Files,
    out: Out,
    tokens: Tokens = 40_000,
    length: Length = 512,
    seed: Seed = 0,
    trust_remote_code: options.TrustRemoteCode = False,
    quiet: options.Quiet = False,
    as_json: options.AsJson = False,
) -> None:
    """Train a model that predicts which draft tokens are accepted, for `--budget
    acceptance:DIR`.
    """
    del quiet  # its check sets runtime.IS_QUIET, which runtime.note reads
    from foreword.train.methods.acceptance import Asked, run

    request = Asked(
        data=tuple(data),
        out=out,
        target=target,
        draft=draft,
        tokens=tokens,
        length=length,
        seed=seed,
        trust_remote_code=trust_remote_code,
    )
    model = run(request, runtime.note)
    if as_json:
        sys.stdout.write(json.dumps(model.about) + "\n")
        return
    _print(model.about["held_out"])
    runtime.note(
        f"{out} holds the acceptance model; use it with --budget acceptance:{out}"
    )


def _print(held_out: dict[str, dict[str, float]]) -> None:
    """Print the scores on held-out text, one row for each temperature."""
    from rich.table import Table

    table = Table("temperature", box=None, padding=(0, 2, 0, 0), header_style="bold")
    for head in ("accepted", "calibration error", "Brier", "Brier of a constant"):
        table.add_column(head, justify="right")
    for temperature, scores in held_out.items():
        names = ("kept", "calibration_error", "brier", "brier_of_a_constant")
        table.add_row(temperature, *(f"{scores[name]:.3f}" for name in names))
    render.stdout().print(table)
