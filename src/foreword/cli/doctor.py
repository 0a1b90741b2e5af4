"""`foreword doctor`: options and output of the drafter diagnosis in
foreword.bench.doctor.
"""

from __future__ import annotations

import json
import sys
from typing import TYPE_CHECKING, Annotated

import typer

from foreword.cli.common import early, options, render, runtime
from foreword.cli.common.bundles import bundled
from foreword.options import LoadingOptions, keywords

if TYPE_CHECKING:
    from foreword.doctor.finding import Diagnosis, Finding

SIGNS = {"good": "[green]✓[/]", "note": "[yellow]•[/]", "bad": "[red]✗[/]"}

Drafter = Annotated[
    str | None,
    typer.Argument(
        help="Draft model or head: folder or hub id.",
        callback=options.checked(early.model),
    ),
]
Prompts = Annotated[int, typer.Option(help="Number of prompts.", min=1, metavar="N")]
MaxTokens = Annotated[
    int,
    typer.Option(help="Maximum number of new tokens per answer.", min=1, metavar="N"),
]


@bundled
def doctor(
    draft: Drafter = None,
    *,
    model: options.ModelName = None,
    method: options.MethodName = None,
    prompts: Prompts = 12,
    max_tokens: MaxTokens = 48,
    loading: LoadingOptions,
    as_json: options.AsJson = False,
) -> None:
    """Diagnose a drafter: vocabulary, layers, training, cost.

    The exit code is 1 if anything is wrong.
    """
    from foreword.doctor.pair import DoctorOptions, examine

    request = DoctorOptions(
        target=model,
        draft=draft,
        method=method,
        prompts=prompts,
        tokens=max_tokens,
        **keywords(loading),
    )
    report = examine(request, runtime.note)
    if as_json:
        sys.stdout.write(json.dumps(report.as_json()) + "\n")
    else:
        _print(report)
    if not report.healthy:
        raise typer.Exit(1)


def _print(report: Diagnosis) -> None:
    """Print the figures, the causes of low speed by rank, and the other findings."""
    from rich.markup import escape

    console = render.stdout()
    for line in report.lines:
        console.print(escape(line))
    for place, cause in enumerate(report.causes, 1):
        console.print(
            f"\n{SIGNS[cause.level]} [bold]{place}. {escape(cause.name)}[/]{_loss(cause)}"
        )
        console.print(f"  {escape(cause.evidence)}")
        console.print(f"  [dim]{escape(cause.remedy)}[/]")
    console.print()
    for finding in report.findings[len(report.causes) :]:
        console.print(f"{SIGNS[finding.level]} {escape(finding.evidence)}")
        if finding.remedy:
            console.print(f"  [dim]{escape(finding.remedy)}[/]")


def _loss(cause: Finding) -> str:
    """Return what the remedy could bring, as far as it is known."""
    return "" if cause.cost == 1 else f": up to {cause.cost:.2f} times as fast"
