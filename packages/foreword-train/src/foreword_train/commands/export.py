"""`foreword export`: options and output of the export in foreword_train.export."""

import json
import sys
from pathlib import Path
from typing import Annotated, Literal

import typer

from foreword.cli.common import early, options, runtime
from foreword.errors import InvalidRequest

Engine = Literal["vllm", "sglang", "speculators", "llama.cpp"]
"""Engines of foreword_train.export, which is too slow to import here."""


def export(
    drafter: Annotated[
        str | None,
        typer.Argument(
            help="Draft model or head, as --draft.",
            callback=options.checked(early.model),
        ),
    ] = None,
    *,
    draft: options.DraftName = None,
    engine: Annotated[
        Engine,
        typer.Option(
            "--for", help="Engine format; speculators is for `vllm serve FOLDER`."
        ),
    ],
    out: Annotated[
        Path,
        options.option(
            None, "--out -o", "New folder for the export.", "DIR", early.new
        ),
    ],
    model: options.ModelName = None,
    as_json: options.AsJson = False,
) -> None:
    """Write a drafter for vLLM, SGLang, speculators or llama.cpp, verify the files, and
    print the engine's command.
    """
    draft = early.either(drafter, draft, "--draft")
    if draft is None:
        raise InvalidRequest("cannot export a draft: none is named. Give '--draft'")
    from foreword import bundled
    from foreword_train.export import export as write

    done = write(draft, model or bundled.target(), engine, out)
    if as_json:
        values = {
            "folder": str(done.folder),
            "method": done.method,
            "tensors": done.tensors,
            "command": done.command,
        }
        sys.stdout.write(json.dumps(values) + "\n")
        return
    runtime.note(
        f"{done.folder}: {done.tensors} tensors, all that {engine} needs, read "
        "back and compared"
    )
    sys.stdout.write(done.command + "\n")
