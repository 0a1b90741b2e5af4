"""`foreword data`: what is done to data before a training. Knows options; the work is in foreword.train."""

from __future__ import annotations

import json
import sys
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from foreword.cli import early, edge, options
from foreword.cli.bundles import Trusting, bundled
from foreword.cli.course import Course
from foreword.cli.options import examples

if TYPE_CHECKING:
    from foreword.train.regenerate import Tally

data = typer.Typer(name="data", no_args_is_help=True, rich_markup_mode="rich", help="Prepare data for a training.")

Files = Annotated[
    list[Path],
    typer.Option(
        "--data",
        help="JSON lines (.gz too): messages or text. May be given again.",
        metavar="FILE",
        callback=options.checked(early.data),
    ),
]
Target = Annotated[
    str | None,
    typer.Option(
        "--target",
        help="Folder or hub id. Default: the family that ships.",
        metavar="MODEL",
        callback=options.checked(early.model),
    ),
]


@data.command(
    epilog=examples(
        "foreword data regenerate --data chats.jsonl --out answers.jsonl",
        "foreword data regenerate --target path/or/hub-id --data chats.jsonl --out answers.jsonl -t 0.7",
    )
)
@bundled
def regenerate(
    *,
    target: Target = None,
    data: Files,
    out: Annotated[
        Path,
        typer.Option(
            help="JSON lines; a run that was interrupted goes on.", metavar="FILE", callback=options.checked(early.file)
        ),
    ],
    temperature: options.Temperature = 1.0,
    max_tokens: Annotated[int, typer.Option(help="Longer answers are cut.", min=1, metavar="N")] = 256,
    batch: Annotated[int, typer.Option(help="Records answered together.", min=1, metavar="N")] = 32,
    limit: Annotated[int | None, typer.Option(help="Only the first so many records.", min=1, metavar="N")] = None,
    seed: Annotated[int, typer.Option(help="Same seed, same answers.", min=0, metavar="N")] = 0,
    draft: options.DraftName = None,
    loading: Trusting,
    as_json: options.AsJson = False,
) -> None:
    """Let the target say every answer again: a draft learns best from what its target really says."""
    from foreword.train.data import read

    records = read(data, answered=False)[:limit]  # first, for it is the quickest to find fault with
    from foreword import LLM
    from foreword.train.regenerate import Wishes, regenerate

    wishes = Wishes(temperature=temperature, max_tokens=max_tokens, batch=batch, seed=seed)
    llm = LLM(target, draft=draft, **loading.how, slots=min(batch, 16))

    with Course(quiet=as_json) as course:

        def progress(tally: Tally) -> None:
            course(f"{tally.records:,} of {len(records):,} records, {tally.tokens:,} tokens")

        tally = regenerate(llm, records, out, wishes, progress)
    if as_json:
        sys.stdout.write(json.dumps(asdict(tally)) + "\n")
        return
    edge.note(
        f"{out}: {tally.records - tally.kept:,} records answered, {tally.kept:,} were there; "
        f"{tally.cut:,} cut at {max_tokens} tokens, {tally.skipped:,} left out"
    )
