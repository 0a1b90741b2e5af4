"""`foreword tune`: options, progress and output of the search in foreword.tune.run."""

from __future__ import annotations

import json
import sys
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from foreword.cli.common import early, options, render, runtime
from foreword.cli.common.bundles import bundled
from foreword.cli.common.options import examples
from foreword.options import LoadingOptions, keywords

if TYPE_CHECKING:
    from foreword.tune.run import Tuned

tune = typer.Typer(
    name="tune",
    no_args_is_help=True,
    rich_markup_mode="rich",
    help="Search for the fastest settings of a method on this machine.",
)

Data = Annotated[
    list[Path] | None,
    typer.Option(
        "--data",
        help=(
            "Prompts as JSON lines (.gz too). Repeatable. Default: the benchmark's "
            "prompts."
        ),
        metavar="FILE",
        callback=options.checked(early.data),
    ),
]
Out = Annotated[
    Path,
    typer.Option(
        "--out",
        "-o",
        help="File of the mask, for --draft.",
        metavar="FILE",
        callback=options.checked(early.file),
    ),
]
Trials = Annotated[
    int,
    typer.Option(help="Most masks tried.", min=1, metavar="N"),
]
Prompts = Annotated[
    int,
    typer.Option(help="Prompts for the search, and the timing.", min=1, metavar="N"),
]
MaxTokens = Annotated[
    int,
    typer.Option(help="Maximum number of new tokens per answer.", min=2, metavar="N"),
]
Seed = Annotated[
    int,
    typer.Option(help="Seed of the answers and the search.", min=0, metavar="N"),
]
Resume = Annotated[
    bool,
    typer.Option("--resume", help="Search on from the mask in --out."),
]


@tune.command(
    epilog=examples(
        "foreword tune layers --out mask.json",
        "foreword tune layers --model path/or/hub-id --data chats.jsonl --trials 300 "
        "--out mask.json",
        "foreword tune layers --model path/or/hub-id --data chats.jsonl --resume "
        "--out mask.json",
        "foreword generate - --model path/or/hub-id --method layers --draft mask.json",
    )
)
@bundled
def layers(
    *,
    model: options.ModelName = None,
    data: Data = None,
    out: Out,
    trials: Trials = 200,
    prompts: Prompts = 12,
    max_tokens: MaxTokens = 64,
    temperature: options.Temperature = 0.0,
    seed: Seed = 0,
    resume: Resume = False,
    loading: LoadingOptions,
    as_json: options.AsJson = False,
) -> None:
    """Find the layers that a model can skip while it drafts for itself (--method
    layers).

    A search over masks of attentions and MLPs, by accepted draft tokens and their
    share of the weights. The best mask is written, then timed against plain decoding,
    even if it is not faster; the output says which. Ctrl-C ends the search and keeps
    the best mask so far.
    """
    from foreword.tune.run import TuneOptions, check
    from foreword.tune.run import tune as search

    request = TuneOptions(
        out=out,
        target=model,
        trials=trials,
        prompts=prompts,
        tokens=max_tokens,
        temperature=temperature,
        seed=seed,
        resume=resume,
        **keywords(loading),
    )
    check(request)
    texts = _prompts(model, data, 2 * prompts, trusted=loading.trust_remote_code)
    with SearchProgress(trials, quiet=as_json) as progress:
        tuned = search(request, texts, watch=progress, note=runtime.note)
    _write(tuned, out, as_json)
    if tuned.over_plain is None:
        raise typer.Exit(130)


def _prompts(
    model: str | None, data: list[Path] | None, most: int, *, trusted: bool
) -> list[Any]:
    """Return the token ids of the prompts: the part of each record before the first
    answer, `most` at most.

    By default the benchmark's prompts, in-domain for the bundled target.
    """
    from foreword import bundled
    from foreword.bench.prompts import load
    from foreword.bench.run import render as rendered
    from foreword.model import load_tokenizer
    from foreword.train.data.packing import Encoder
    from foreword.train.data.records import read
    from foreword.train.report.measure import spread

    # first, since it is the cheapest step that can fail
    records = read(data, answered=False) if data else []
    tokenizer = load_tokenizer(model or bundled.target(), trust_remote_code=trusted)
    if not data:
        name = "in-domain" if model is None else "out-of-domain"
        return [list(rendered(tokenizer, prompt)) for prompt in load(name)]
    encode = Encoder(tokenizer, frozenset())
    chosen = spread(
        [(record.source, [place]) for place, record in enumerate(records)], most
    )
    return [ids for _, (place,) in chosen if (ids := encode.prompt(records[place]))]


class SearchProgress:
    """Progress of a search on stderr: a bar on a terminal, one line per EVERY trials in
    a pipe.
    """

    EVERY = 50
    """Trials between two lines."""

    def __init__(self, trials: int, *, quiet: bool = False) -> None:
        from rich.progress import (
            BarColumn,
            MofNCompleteColumn,
            Progress,
            TextColumn,
            TimeRemainingColumn,
        )

        columns = (
            MofNCompleteColumn(),
            BarColumn(),
            TextColumn("{task.description}"),
            TimeRemainingColumn(),
        )
        self._console = render.notes()
        self._bar = Progress(
            *columns,
            console=self._console,
            disable=quiet or not self._console.is_terminal,
        )
        self._task = self._bar.add_task("", total=trials)

    def __enter__(self) -> SearchProgress:
        self._bar.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._bar.stop()

    def __call__(self, done: int, best: float) -> None:
        """Show one trial."""
        status = f"best expected {best:.2f}x"
        self._bar.update(self._task, completed=done, description=status)
        if not self._console.is_terminal and done % self.EVERY == 0:
            runtime.note(f"{done} trials, {status}")


def _write(tuned: Tuned, out: Path, as_json: bool) -> None:
    from foreword.draft.self_speculative.layers import named

    values = asdict(tuned) | {"out": str(out), "pays": tuned.pays}
    values |= named(values.pop("mask"))
    if as_json:
        sys.stdout.write(json.dumps(values) + "\n")
        return
    facts: dict[str, object] = {
        "skipped": (
            f"attention of {values['attention'] or 'none'}, MLP of "
            f"{values['mlp'] or 'none'}"
        ),
        "trials": tuned.trials,
        "cost of a draft token": f"{tuned.propose:.2f} of a forward",
        "expected": f"{tuned.expected:.2f}x plain decoding",
    }
    over = tuned.over_plain
    if over is not None:
        facts["measured"] = (
            f"{over.mid:.2f}x plain decoding (95%: {over.low:.2f} to {over.high:.2f})"
        )
    render.facts(facts)
    runtime.note(_summary(tuned, out))


def _summary(tuned: Tuned, out: Path) -> str:
    over = tuned.over_plain
    if over is None:
        return f"{out} holds the best mask so far, not timed; continue with --resume"
    if tuned.pays:
        return f"{out} holds the mask; use it with --method layers --draft {out}"
    reason = (
        "plain decoding is faster"
        if over.high < 1
        else "the difference to plain decoding is within the noise"
    )
    return (
        f"no mask gives a speedup: {reason} ({over.mid:.2f}x). {out} holds the best "
        "mask; another method is better"
    )
