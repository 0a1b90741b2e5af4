"""`foreword train acceptance`: options, and what came of it in words. The work is in foreword.train.acceptance."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Annotated

import typer

from foreword.cli import early, edge, options, show
from foreword.cli.data import Files, Target


def acceptance(
    *,
    target: Target = None,
    draft: options.DraftName = None,
    data: Files,
    out: Annotated[
        Path, typer.Option(help="Folder for the odds.", metavar="DIR", callback=options.checked(early.folder))
    ],
    tokens: Annotated[int, typer.Option(help="Tokens to learn from, about.", min=1000, metavar="N")] = 40_000,
    length: Annotated[int, typer.Option(help="Tokens in a block of records.", min=2, metavar="N")] = 512,
    seed: Annotated[int, typer.Option(help="Which records are held out.", min=0, metavar="N")] = 0,
    as_json: options.AsJson = False,
) -> None:
    """Learn when a draft model's guesses are kept, for `--width acceptance:DIR`."""
    from foreword.train.acceptance import Asked, run

    asked = Asked(data=tuple(data), out=out, target=target, draft=draft, tokens=tokens, length=length, seed=seed)
    forecast = run(asked, edge.note)
    if as_json:
        sys.stdout.write(json.dumps(forecast.about) + "\n")
        return
    from rich.table import Table

    table = Table("temperature", box=None, padding=(0, 2, 0, 0), header_style="bold")
    for head in ("guesses kept", "calibration error", "Brier", "of a constant"):
        table.add_column(head, justify="right")
    for heat, found in forecast.about["held_out"].items():
        names = ("kept", "calibration_error", "brier", "brier_of_a_constant")
        table.add_row(heat, *(f"{found[name]:.3f}" for name in names))
    show.stdout().print(table)
    edge.note(f"{out} holds the odds: --width acceptance:{out}")
