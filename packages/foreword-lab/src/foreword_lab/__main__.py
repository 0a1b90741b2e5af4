"""`foreword-lab`: all commands of `foreword` where it is installed; alone, and without
torch, the certificate of a server.
"""

import json
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table

from foreword_lab.certify.remote.client import Unreachable
from foreword_lab.certify.remote.run import certify_server
from foreword_lab.certify.report import CODES, page


def main() -> None:
    """Run the command line. Always ends in SystemExit."""
    if find_spec("foreword") is not None:
        from foreword.cli import main as whole

        whole()
    try:
        alone()
    except (Unreachable, OSError) as error:
        sys.exit(_failed(str(error)))


alone = typer.Typer(
    name="foreword-lab",
    rich_markup_mode=None,
    add_completion=False,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
)


@alone.callback()
def root() -> None:
    """Certify a server with OpenAI's API. Other commands come with 'foreword[lab]'."""


@alone.command()
def certify(
    *,
    url: Annotated[str, typer.Option(help="Address of the server.")],
    key: Annotated[str | None, typer.Option(help="Key of the server.")] = None,
    model: Annotated[
        str | None, typer.Option(help="Model. Default: its first.")
    ] = None,
    minutes: Annotated[float, typer.Option(min=0.1, help="Time to spend.")] = 3.0,
    quick: Annotated[bool, typer.Option("--quick", help="Each check once.")] = False,
    seed: Annotated[int, typer.Option(min=0, help="First seed.")] = 0,
    json_: Annotated[
        Path | None, typer.Option("--json", help="JSON file of the certificate.")
    ] = None,
    report: Annotated[Path | None, typer.Option(help="HTML file of it.")] = None,
) -> None:
    """Test that a server draws the tokens that its log-probabilities promise, and
    writes one text for one request. The exit code is 0 if it is consistent, 1 if it
    differs, and 2 if the run cannot say.
    """
    result = certify_server(
        url,
        key=key,
        model=model,
        minutes=minutes,
        quick=quick,
        seed=seed,
        note=Console(stderr=True).print,
    )
    if json_ is not None:
        text = json.dumps(result.as_json(), indent=1, ensure_ascii=False)
        json_.write_text(text + "\n", encoding="utf-8")
    if report is not None:
        report.write_text(page(result), encoding="utf-8")
    table = Table("outcome", "check", "result", box=None)
    for check in result.checks:
        table.add_row(check.status, check.name, check.what)
    console = Console(markup=False)
    console.print(table)
    console.print(result.verdict)
    raise typer.Exit(CODES[result.status])


def _failed(message: str) -> int:
    Console(stderr=True, markup=False).print(f"error: {message}")
    return CODES["cannot say"]


if __name__ == "__main__":
    main()
