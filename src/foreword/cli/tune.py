"""`foreword tune`: options of a search, its progress and what is said of it. The work is in foreword.bench.tune."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from foreword.cli import early, edge, options, show
from foreword.cli.bundles import Loading, bundled
from foreword.cli.options import examples

if TYPE_CHECKING:
    from foreword.bench.trials import Tried
    from foreword.bench.tune import Tuned

tune = typer.Typer(
    name="tune", no_args_is_help=True, rich_markup_mode="rich", help="Search for settings of a method, on this machine."
)

Data = Annotated[
    list[Path] | None,
    typer.Option(
        "--data",
        help="JSON lines (.gz too): messages or text, like those it shall serve; may be given again. Default: the "
        "benchmark's prompts, public test sets that are there to measure on.",
        metavar="FILE",
        callback=options.checked(early.data),
    ),
]


@tune.command(
    epilog=examples(
        "foreword tune layers --out mask.json",
        "foreword tune layers --model path/or/hub-id --data chats.jsonl --trials 300 --out mask.json",
        "foreword tune layers --model path/or/hub-id --data chats.jsonl --trials 600 --out mask.json --resume",
        "foreword generate - --model path/or/hub-id --method layers --draft mask.json",
    )
)
@bundled
def layers(
    *,
    model: options.ModelName = None,
    data: Data = None,
    out: Annotated[
        Path,
        typer.Option(
            "--out", "-o", help="Gets the mask, for --draft.", metavar="FILE", callback=options.checked(early.file)
        ),
    ],
    trials: Annotated[int, typer.Option(help="Masks to try, earlier ones included.", min=1, metavar="N")] = 200,
    prompts: Annotated[int, typer.Option(help="Searched on; as many again are timed, twice.", min=1, metavar="N")] = 12,
    max_tokens: Annotated[int, typer.Option(help="At most this long answers.", min=2, metavar="N")] = 64,
    temperature: options.Temperature = 0.0,
    seed: Annotated[int, typer.Option(help="Of the answers and of the search.", min=0, metavar="N")] = 0,
    resume: Annotated[bool, typer.Option("--resume", help="Go on from the trials kept beside --out.")] = False,
    loading: Loading,
    as_json: options.AsJson = False,
) -> None:
    """Find attentions and MLPs of a model to leave out while it guesses for itself (--method layers).

    Bayesian optimisation over masks, by how deep their guesses come true and what they cost on this machine; the best
    are then timed beside plain decoding. The mask is written whether it pays or not; what is said here is which.
    Ctrl-C ends the search and keeps the best so far.
    """
    from foreword.bench.tune import HANDS, Asked, check
    from foreword.bench.tune import tune as search

    asked = Asked(
        out=out, target=model, trials=trials, prompts=prompts, tokens=max_tokens, temperature=temperature, seed=seed,
        resume=resume, **loading.how,
    )  # fmt: skip
    check(asked)
    found_in = _prompts(model, data, HANDS * prompts)
    with Course(trials, quiet=as_json) as course:
        found = search(asked, found_in, watch=course, note=edge.note)
    _write(found, out, as_json)
    if found.runoff is None:
        raise typer.Exit(130)


def _prompts(model: str | None, data: list[Path] | None, most: int) -> list[Any]:
    """Token ids of what is to be continued: of a record, what comes before the first answer; `most` records at most."""
    from foreword import family
    from foreword.bench.tune import usual
    from foreword.model import load_tokenizer
    from foreword.train.data import read
    from foreword.train.pack import Encoder
    from foreword.train.report import spread

    records = read(data, answered=False) if data else []  # first, for it is the quickest to find fault with
    tokenizer = load_tokenizer(model or family.target())
    if not data:
        return usual(tokenizer, model)
    encode = Encoder(tokenizer, frozenset())
    chosen = spread([(record.source, [place]) for place, record in enumerate(records)], most)
    return [ids for _, (place,) in chosen if (ids := encode.prompt(records[place]))]


class Course:
    """The course of a search on stderr: a bar on a terminal, a line now and then in a pipe."""

    EVERY = 50
    """Trials between two lines."""

    def __init__(self, trials: int, *, quiet: bool = False) -> None:
        from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

        columns = (MofNCompleteColumn(), BarColumn(), TextColumn("{task.description}"), TimeRemainingColumn())
        self._console = show.stderr()
        self._bar = Progress(*columns, console=self._console, disable=quiet or not self._console.is_terminal)
        self._task = self._bar.add_task("", total=trials)

    def __enter__(self) -> Course:
        self._bar.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._bar.stop()

    def __call__(self, done: int, best: Tried | None) -> None:
        """Show one trial."""
        said = f"best expected {best.value:.2f}x" if best else ""
        self._bar.update(self._task, completed=done, description=said)
        if best and not self._console.is_terminal and done % self.EVERY == 0:
            edge.note(f"{done} trials, {said}")


def _write(found: Tuned, out: Path, as_json: bool) -> None:
    if as_json:
        sys.stdout.write(json.dumps({"out": str(out), **found.as_json()}) + "\n")
        return
    said = found.as_json()
    facts: dict[str, object] = {
        "left out": f"attention of {said['attention'] or 'none'}, MLP of {said['mlp'] or 'none'}",
        "trials": f"{found.trials}, of which {found.given_up} were given up early",
        "a guess costs": f"{said['guess']:.2f} of a forward",
        "expected": f"{found.expected:.2f}x plain decoding",
    }
    raced = found.runoff
    if raced is not None:
        over = raced.over_plain
        facts["measured"] = (
            f"{over.mid:.2f}x plain decoding (95%: {over.low:.2f} to {over.high:.2f}), "
            f"{raced.tokens_per_second:.1f} tokens/s beside {raced.plain:.1f}"
        )
        facts["tokens a pass"] = f"{raced.tokens_per_pass:.2f}"
        facts["width"] = raced.width
    show.facts(facts)
    edge.note(_verdict(found, out))


def _verdict(found: Tuned, out: Path) -> str:
    if found.runoff is None:
        return f"{out} holds the best so far, which was not timed; --resume goes on"
    over = found.runoff.over_plain
    if found.pays:
        return f"{out} holds it; use it with --method layers --draft {out} --width {found.runoff.width}"
    told = "plain decoding is faster" if over.high < 1 else "no difference to plain decoding can be told"
    return f"no mask pays: {told} ({over.mid:.2f}x). {out} holds the best all the same; better use another method"
