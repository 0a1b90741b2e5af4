"""`foreword doctor`: says what is wrong with a drafter. The examination is in foreword.bench.doctor."""

from __future__ import annotations

import json
import sys
from typing import Annotated

import typer

from foreword.cli import early, edge, options, show
from foreword.cli.bundles import Loading, bundled

SIGNS = {"good": "[green]✓[/]", "note": "[yellow]•[/]", "bad": "[red]✗[/]"}


@bundled
def doctor(
    draft: Annotated[
        str | None,
        typer.Argument(
            help="A smaller model or a trained head: folder or hub id.", callback=options.checked(early.model)
        ),
    ] = None,
    *,
    model: options.ModelName = None,
    method: options.MethodName = None,
    prompts: Annotated[int, typer.Option(help="Prompts that it is tried on.", min=1, metavar="N")] = 12,
    max_tokens: Annotated[int, typer.Option(help="At most this long answers.", min=1, metavar="N")] = 48,
    loading: Loading,
    as_json: options.AsJson = False,
) -> None:
    """Try a drafter on its target and say what is wrong: tokens, layers, training, price. 1 if anything is."""
    from foreword.bench.doctor import Asked, examine

    asked = Asked(target=model, draft=draft, method=method, prompts=prompts, tokens=max_tokens, **loading.how)
    found = examine(asked, edge.note)
    if as_json:
        sys.stdout.write(json.dumps(found.as_json()) + "\n")
    else:
        from rich.markup import escape

        console = show.stdout()
        for finding in found.findings:
            console.print(f"{SIGNS[finding.level]} {escape(finding.what)}")
            if finding.advice:
                console.print(f"  [dim]{escape(finding.advice)}[/]")
        for heat, work in found.work.items():
            console.print(f"temperature {heat}: {work.tokens_per_pass:.2f} tokens a pass with 8 guesses")
    if not found.healthy:
        raise typer.Exit(1)
