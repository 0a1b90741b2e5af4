"""`foreword doctor`: options and output of the diagnoses in foreword.doctor."""

import json
import sys
from textwrap import wrap
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console

from foreword.cli.common import early, options, render, runtime
from foreword.cli.common.bundles import bundled
from foreword.options import LoadingOptions, keywords

if TYPE_CHECKING:
    from foreword_lab.doctor.finding import Diagnosis, Finding

INDENT, WIDTH = "  ", 40
"""Before evidence and remedies; columns of the narrowest terminal that they fit."""
SIGNS = {"good": "[green]✓[/]", "note": "[yellow]•[/]", "bad": "[red]✗[/]"}

Drafter = Annotated[
    str | None,
    typer.Argument(
        help="Draft model or head, as --draft.", callback=options.checked(early.model)
    ),
]
Prompts = Annotated[
    int, options.option(None, "--prompts", "Number of prompts.", "N", least=1)
]
Url = Annotated[
    str | None,
    options.option(
        options.SERVER,
        "--url",
        "Address of a running server of Foreword or vLLM.",
        "BASE",
    ),
]
BOTH = (
    "diagnose a drafter and a server at once: '--url' names a server. Leave out the "
    "draft, '--model' and '--method'"
)


@bundled
def doctor(
    drafter: Drafter = None,
    *,
    draft: options.DraftName = None,
    model: options.ModelName = None,
    method: options.MethodName = None,
    prompts: Prompts = 12,
    max_tokens: options.MostTokens = 48,
    url: Url = None,
    key: options.Key = None,
    loading: LoadingOptions,
    as_json: options.AsJson = False,
) -> None:
    """Rank the causes of low speed, each with its evidence and its remedy.

    A drafter is loaded with its target and measured: vocabulary, layers, training,
    cost. With --url the metrics of a running server are read, and nothing is loaded.
    The exit code is 1 if anything is wrong.
    """
    draft = early.either(drafter, draft, "--draft")
    early.of_server(url, key, draft or model or method, BOTH)
    if url is None:
        from foreword_lab.doctor.pair import DoctorOptions, examine

        request = DoctorOptions(
            target=model,
            draft=draft,
            method=method,
            prompts=prompts,
            tokens=max_tokens,
            **keywords(loading),
        )
        report = examine(request, runtime.note)
    else:
        early.extra("serve", "prometheus_client")
        from foreword_lab.doctor.server.run import examine_server

        report = examine_server(url, key)
    if as_json:
        sys.stdout.write(json.dumps(report.as_json()) + "\n")
    else:
        _print(report)
    if not report.healthy:
        raise typer.Exit(1)


def _print(report: "Diagnosis") -> None:
    """Print the figures, the causes of low speed by rank, and the other findings."""
    from rich.markup import escape

    console = render.stdout()
    for line in report.lines:
        console.print(escape(line))
    for rank, cause in enumerate(report.causes, 1):
        head = f"{SIGNS[cause.level]} [bold]{rank}. {escape(cause.name)}[/]"
        console.print(f"\n{head}{_loss(cause)}")
        _print_indented(console, cause.evidence)
        _print_indented(console, cause.remedy, "dim")
    console.print()
    for finding in report.findings[len(report.causes) :]:
        console.print(f"{SIGNS[finding.level]} {escape(finding.evidence)}")
        _print_indented(console, finding.remedy, "dim")


def _print_indented(console: Console, text: str, style: str | None = None) -> None:
    from rich.markup import escape

    for line in wrap(text, max(WIDTH, console.width) - len(INDENT)):
        console.print(INDENT + escape(line), style=style)


def _loss(cause: "Finding") -> str:
    """Return what the remedy could bring; nothing if that is unknown."""
    return "" if cause.cost == 1 else f": up to {cause.cost:.2f} times as fast"
