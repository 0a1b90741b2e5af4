"""`foreword data`: options and output of data preparation in foreword_train.data."""

import json
import sys
from dataclasses import asdict
from pathlib import Path
from time import perf_counter
from typing import TYPE_CHECKING, Annotated

import typer

from foreword.cli.common import early, options, runtime
from foreword.cli.common.bundles import bundled
from foreword.cli.common.options import examples
from foreword.cli.common.progress import LineProgress
from foreword.options import LoadingOptions, keywords

if TYPE_CHECKING:
    from foreword_train.data.regenerate import Tally

PERIOD = 10.0
"""Seconds between lines of progress."""

data = typer.Typer(
    name="data",
    no_args_is_help=True,
    rich_markup_mode="rich",
    help="Prepare training data.",
)

Files = Annotated[
    list[Path],
    options.option(
        None,
        "--data",
        "Records as JSON lines (.gz too). Repeatable.",
        "FILE",
        early.data,
    ),
]
Out = Annotated[
    Path,
    options.option(
        None, "", "JSON lines file; an interrupted run continues.", "FILE", early.file
    ),
]
MaxTokens = Annotated[
    int,
    typer.Option(help="Maximum number of new tokens per answer.", min=1, metavar="N"),
]
Batch = Annotated[int, typer.Option(help="Records per batch.", min=1, metavar="N")]
Limit = Annotated[
    int | None,
    typer.Option(help="Number of records used, from the first.", min=1, metavar="N"),
]
Seed = Annotated[
    int,
    typer.Option(help="Sampling seed; same seed, same answers.", min=0, metavar="N"),
]


@data.command(
    epilog=examples(
        "foreword data regenerate --data chats.jsonl --out answers.jsonl",
        "foreword data regenerate --model path/or/hub-id --data chats.jsonl --out "
        "answers.jsonl -t 0.7",
    )
)
@bundled
def regenerate(
    *,
    target: options.ModelName = None,
    data: Files,
    out: Out,
    temperature: options.Temperature = 1.0,
    max_tokens: MaxTokens = 256,
    batch: Batch = 16,
    limit: Limit = None,
    seed: Seed = 0,
    draft: options.DraftName = None,
    loading: LoadingOptions,
    as_json: options.AsJson = False,
) -> None:
    """Replace every answer by the target's own: a draft model learns best from text of
    its target.
    """
    from foreword_train.data.records import read

    # first, since it is the cheapest step that can fail
    records = read(data, answered=False)[:limit]
    from foreword import LLM
    from foreword_train.data.regenerate import Wishes, regenerate

    request = Wishes(
        temperature=temperature, max_tokens=max_tokens, batch=batch, seed=seed
    )
    llm = LLM(target, draft=draft, **keywords(loading), slots=min(batch, 16))

    started = shown = perf_counter()
    with LineProgress(quiet=as_json) as show:

        def progress(tally: "Tally") -> None:
            nonlocal shown
            now = perf_counter()
            if tally.records < len(records) and now - shown < PERIOD:
                return
            shown = now
            rate = tally.tokens / (now - started)
            show(
                f"{tally.records:,} of {len(records):,} records, {tally.tokens:,} "
                f"tokens ({rate:,.0f} a second)"
            )

        tally = regenerate(llm, records, out, request, progress)
    if as_json:
        sys.stdout.write(json.dumps(asdict(tally)) + "\n")
        return
    runtime.note(
        f"{out}: {tally.records - tally.kept:,} records answered, {tally.kept:,} from "
        "an earlier run; "
        f"{tally.cut:,} cut at {max_tokens} tokens, {tally.skipped:,} skipped"
    )
