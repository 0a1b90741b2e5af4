"""`foreword bench`: options of a measurement. What is measured, and how, is said in foreword.bench."""

from __future__ import annotations

import json as encode
from pathlib import Path
from typing import Annotated, Literal

import typer

from foreword.cli import edge, options, show

MEASURE, WRITE = "What is measured", "What is written"


def bench(
    *,
    quick: Annotated[
        bool, typer.Option("--quick", help="Few prompts, a minute on two cores.", rich_help_panel=MEASURE)
    ] = False,
    inflate: Annotated[
        str | None,
        typer.Option(
            help="Give the family the cost of a bigger model: llama-110m, llama-350m, llama-1b, llama-8b. Same text.",
            metavar="SHAPE",
            rich_help_panel=MEASURE,
        ),
    ] = None,
    temperature: Annotated[
        list[float] | None,
        typer.Option("--temperature", "-t", help="May be given again. Default: 0 and 1.", metavar="T"),
    ] = None,
    method: Annotated[
        list[str] | None, typer.Option(help="A row of the table; may be given again. Default: all.", metavar="NAME")
    ] = None,
    prompts: Annotated[Literal["in-domain", "out-of-domain"], typer.Option(help="Which prompts.")] = "in-domain",
    limit_prompts: Annotated[int | None, typer.Option(min=1, help="Only so many prompts.", metavar="N")] = None,
    max_tokens: Annotated[int, typer.Option(min=1, help="Length of an answer.", metavar="N")] = 128,
    repeats: Annotated[int, typer.Option(min=1, help="Times each prompt is run.", metavar="N")] = 1,
    seed: Annotated[int, typer.Option(min=0, help="Of every request.", metavar="N")] = 0,
    model: options.ModelName = None,
    draft: options.DraftName = None,
    dtype: options.DtypeName = "auto",
    json: Annotated[
        Path | None, typer.Option("--json", help="Write the figures here; - is stdout.", rich_help_panel=WRITE)
    ] = None,
    plot: Annotated[
        Path | None, typer.Option(help="Draw them here (PNG; needs foreword\\[bench]).", rich_help_panel=WRITE)
    ] = None,
) -> None:
    """Measure every way to guess, plain decoding and transformers on this machine, in one interleaved run."""
    from foreword.bench.run import Options, run

    report = run(
        Options(
            quick=quick,
            inflate=inflate,
            temperatures=tuple(temperature) if temperature else (0.0, 1.0),
            methods=tuple(method) if method else None,
            prompts=prompts,
            limit_prompts=limit_prompts,
            max_tokens=max_tokens,
            repeats=repeats,
            seed=seed,
            dtype=dtype,
            target=model,
            draft=draft,
            plot=None if plot is None else str(plot),
        ),
        edge.note,
    )
    found = encode.dumps(report.as_json(), indent=2) + "\n"
    if json == Path("-"):
        typer.echo(found, nl=False)
        return
    if json is not None:
        json.write_text(found, encoding="utf-8")
    show.stdout().print(report.table())
