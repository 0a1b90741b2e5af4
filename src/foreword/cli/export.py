"""`foreword export`: a drafter for another engine. Knows options; the work is in foreword.train.export."""

from __future__ import annotations

import json
import sys
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from foreword.cli import early, edge, options


class Engine(StrEnum):
    """Who can be served; the names are those of foreword.draft.parcel, which is not loaded for a list of options."""

    VLLM = "vllm"
    SGLANG = "sglang"
    SPECULATORS = "speculators"


def export(
    draft: Annotated[
        str,
        typer.Argument(
            help="A draft model or a trained head: folder or hub id.", callback=options.checked(early.model)
        ),
    ],
    *,
    engine: Annotated[Engine, typer.Option("--for", help="Who is to read it. speculators: `vllm serve FOLDER` alone.")],
    out: Annotated[
        Path, typer.Option("--out", "-o", help="New folder.", metavar="DIR", callback=options.checked(early.new))
    ],
    model: options.ModelName = None,
    as_json: options.AsJson = False,
) -> None:
    """Write a drafter for vLLM, SGLang or speculators, read it again, and say how to start that engine with it."""
    from foreword import family
    from foreword.train.export import export as write

    done = write(draft, model or family.target(), engine.value, out)
    if as_json:
        told = {"folder": str(done.folder), "method": done.method, "tensors": done.tensors, "command": done.command}
        sys.stdout.write(json.dumps(told) + "\n")
        return
    edge.note(f"{done.folder}: {done.tensors} tensors, all that {engine.value} looks for, read again and found equal")
    sys.stdout.write(done.command + "\n")
