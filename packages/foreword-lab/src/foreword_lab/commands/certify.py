"""`foreword certify`: options and output of the checks in foreword.certify."""

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from foreword.cli.common import early, options, render, runtime
from foreword.cli.common.bundles import bundled
from foreword.cli.common.early import STDOUT
from foreword.cli.common.options import option
from foreword.cli.common.progress import LineProgress
from foreword.cli.common.tables import BARE, Column, Table, name_column
from foreword.options import ModelOptions, keywords

if TYPE_CHECKING:
    from foreword_lab.certify.report import Certificate, Check

STYLES = {"consistent": "green", "differs": "bold red", "numerics": "yellow"}
RUN = "Certificate"
BOTH = (
    "certify a model and a server at once: '--url' names a server. Leave out the "
    "argument, '--method', and all drafts but one"
)


Drafts = Annotated[
    list[str] | None,
    option(
        options.MODEL,
        "--draft -d",
        "Draft model or head; with --url: one that orders tokens here. Repeatable.",
        "MODEL",
        early.each(early.model),
    ),
]
Methods = Annotated[
    list[str] | None,
    option(
        RUN,
        "--method",
        "Drafting method. Repeatable. Default: the drafts' and all free ones.",
        "NAME",
        early.each(early.method),
    ),
]
Minutes = Annotated[
    float, option(RUN, "--minutes", "Time to spend, in minutes.", "N", least=0.1)
]
Quick = Annotated[bool, option(RUN, "--quick", "Each check once.")]
Seed = Annotated[int, option(RUN, "--seed", "First seed.", "N", least=0)]
Json = Annotated[
    Path | None,
    option(
        RUN,
        "--json",
        "JSON file of the certificate; - is stdout.",
        "FILE",
        early.output,
    ),
]
Report = Annotated[
    Path | None,
    option(RUN, "--report", "HTML file of the certificate.", "FILE", early.file),
]
Url = Annotated[
    str | None,
    option(options.SERVER, "--url", "Address of a server with OpenAI's API.", "BASE"),
]
Model = Annotated[
    str | None,
    option(
        options.MODEL,
        "--model -m",
        "Target model; with --url: model of the server. Default: its first.",
        "MODEL",
        early.model,
    ),
]


@bundled
def certify(
    target: options.ModelArgument = None,
    *,
    draft: Drafts = None,
    method: Methods = None,
    minutes: Minutes = 3.0,
    quick: Quick = False,
    seed: Seed = 0,
    json_: Json = None,
    report: Report = None,
    url: Url = None,
    key: options.Key = None,
    model: Model = None,
    loading: ModelOptions,
    quiet: options.Quiet = False,
) -> None:
    """Test on your own models and machine, or server, that drafting changes no text.

    Texts with drafting are compared with plain decoding, and sampled tokens with the
    target's distribution. The exit code is 0 if they are consistent, 1 if they differ,
    and 2 if the run cannot say.
    """
    run: dict[str, Any] = dict(minutes=minutes, quick=quick, seed=seed)
    early.of_server(url, key, target or method or (draft or [])[1:], BOTH)
    target = None if url else early.either(target, model, "--model")
    with LineProgress(quiet=quiet or json_ == STDOUT) as progress:
        if url is not None:
            from foreword_lab.certify.remote.run import certify_server

            here = next(iter(draft or ()), None)
            named = dict(key=key, model=model, draft=here)
            result = certify_server(url, note=progress, **named, **run)
        else:
            from foreword_lab.certify.run import CertifyOptions
            from foreword_lab.certify.run import certify as certify_pair

            pair = dict(drafts=tuple(draft or ()), methods=tuple(method or ()))
            settings = CertifyOptions(target=target, **pair, **run, **keywords(loading))
            result = certify_pair(settings, progress)
    from foreword_lab.certify.report import CODES

    _write(result, json_, report)
    raise typer.Exit(CODES[result.status])


def _write(result: "Certificate", file: Path | None, report: Path | None) -> None:
    from foreword_lab.certify.report import page, write_json
    from foreword_lab.html_page import write

    if report is not None:
        write(report, page(result))
        runtime.note(f"saved the report to {report}")
    if file == STDOUT:
        sys.stdout.write(json.dumps(result.as_json()) + "\n")
        return
    if file is not None:
        write_json(file, result)
        runtime.note(f"saved the certificate to {file}")
    _print(result)


def _print(result: "Certificate") -> None:
    """Print the checks as a table, and the verdict."""
    from rich.text import Text

    def outcome(check: "Check") -> Text:
        return Text(check.status, STYLES.get(check.status, "dim"))

    def words(head: str, text: "Callable[[Check], str]", ratio: int) -> "Column[Check]":
        return Column(
            head,
            lambda check: Text(render.printable(text(check))),
            justify="left",
            folds=True,
            ratio=ratio,
        )

    columns = (
        name_column("outcome", outcome),
        words("check", lambda check: check.name, 2),
        words("result", lambda check: check.what, 3),
    )
    console = render.stdout()
    console.print(Table(result.checks, columns, look=BARE))
    console.print(result.verdict, style=STYLES.get(result.status, "bold"))
