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
    from foreword.bench.doctor import Diagnosis

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
    from foreword.bench.doctor import DoctorOptions, examine

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
    """Print the findings with their advice, then the work of each temperature."""
    from rich.markup import escape

    console = render.stdout()
    for finding in report.findings:
        console.print(f"{SIGNS[finding.level]} {escape(finding.what)}")
        if finding.advice:
            console.print(f"  [dim]{escape(finding.advice)}[/]")
    for temperature, work in report.work.items():
        console.print(
            f"temperature {temperature}: {work.tokens_per_pass:.2f} tokens per "
            "pass with 8 draft tokens"
        )
