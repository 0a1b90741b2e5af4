"""`foreword push`: options, confirmation and output of publishing a drafter."""

import sys
from typing import Annotated

import typer

from foreword.cli.common import early, options, render, runtime
from foreword.errors import InvalidRequest

BaseModel = Annotated[
    str | None,
    options.option(
        None, "--base-model", "Target's hub id. Default: as in card or report.", "NAME"
    ),
]
Private = Annotated[bool, options.option(None, "--private", "New, private repository.")]
Yes = Annotated[bool, options.option(None, "--yes -y", "Upload without a question.")]
Draft = Annotated[
    str,
    typer.Argument(
        help="Folder of the drafter.", callback=options.checked(early.model)
    ),
]
Repo = Annotated[str, typer.Argument(help="Its hub id.", metavar="ORG/NAME")]


def push(
    draft: Draft,
    repo: Repo,
    *,
    base_model: BaseModel = None,
    private: Private = False,
    yes: Yes = False,
) -> None:
    """Publish a drafter on the hub of Hugging Face, with its card.

    The files are listed first. The card names the target, so that `--draft auto` finds
    the drafter.
    """
    if not (yes or runtime.stdin().isatty()):
        raise InvalidRequest("cannot ask before an upload: no terminal. Add '--yes'")
    from foreword_train.hub import prepare

    upload = prepare(draft, repo, base_model)
    sizes = {name: f"{size:,} bytes" for name, size in upload.sizes.items()}
    drafter = f"method {upload.method}, for {upload.target}"
    where = f"{repo}, {'private' if private else 'public'}"
    render.facts({"drafter": drafter, "repository": where, "files": sizes})
    total = f"{sum(upload.sizes.values()) / 1e6:,.1f} MB"
    if not (yes or typer.confirm(f"upload {total}?", err=True)):
        raise typer.Exit(1)
    sys.stdout.write(upload.send(private=private) + "\n")
