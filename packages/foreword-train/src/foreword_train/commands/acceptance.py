"""`foreword train acceptance`: options and output of training its model."""

import json
import sys
from pathlib import Path
from typing import Annotated, TypeAlias

import typer

from foreword.cli.common import options, render, runtime
from foreword.cli.common.tables import BARE, Column, Table
from foreword.files import check_creatable
from foreword_train.commands.data import Files

Out = Annotated[
    Path,
    typer.Option(
        help="Folder for the acceptance model.",
        metavar="DIR",
        callback=options.checked(check_creatable),
    ),
]
Tokens = Annotated[
    int, typer.Option(help="Training tokens, approximately.", min=1000, metavar="N")
]
Length = Annotated[
    int, typer.Option(help="Tokens per block of packed records.", min=2, metavar="N")
]
Seed = Annotated[
    int, typer.Option(help="Seed of the held-out split.", min=0, metavar="N")
]


def acceptance(
    *,
    target: options.ModelName = None,
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
    from foreword_train.methods.acceptance import Asked, run

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


_Scores: TypeAlias = tuple[str, dict[str, float]]
"""A temperature and its scores."""


def _print(held_out: dict[str, dict[str, float]]) -> None:
    """Print the scores on held-out text, one row for each temperature."""

    def column(head: str, name: str) -> Column[_Scores]:
        return Column(head, lambda row: f"{row[1][name]:.3f}")

    columns = (
        Column[_Scores]("temperature", lambda row: row[0], justify="left"),
        column("accepted", "kept"),
        column("calibration error", "calibration_error"),
        column("Brier", "brier"),
        column("Brier of a constant", "brier_of_a_constant"),
    )
    render.stdout().print(Table(list(held_out.items()), columns, look=BARE))
