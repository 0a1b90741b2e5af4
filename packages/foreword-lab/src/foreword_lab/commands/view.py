"""`foreword view`: a recorded answer in colour, round by round; loads no model."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, TypeAlias

import typer

from foreword.cli.common import early, options, render, runtime
from foreword.cli.common.tables import BARE, Column, Table
from foreword_lab.commands.demo_view import Scene, page_file

if TYPE_CHECKING:
    from rich.text import Text

    from foreword.recording import Recording
    from foreword.types import Origin
    from foreword.types.round import Round

    _Row: TypeAlias = tuple[int, Round]


def view(
    file: Annotated[
        Path,
        typer.Argument(
            help="Recording, from `foreword generate --record`.",
            callback=options.checked(lambda file: early.there(file)),
        ),
    ],
    rounds: Annotated[
        bool, typer.Option("--rounds", help="One line per round.")
    ] = False,
    html: Annotated[
        Path | None,
        typer.Option(
            dir_okay=False,
            help="HTML file of a replay; needs no server.",
            callback=options.checked(page_file),
        ),
    ] = None,
) -> None:
    """Show a recorded answer: accepted draft tokens green, tokens of the target bold,
    then totals.

    With `--html` the answer is written as one page instead: every round with its draft
    tree, and a time slider.
    """
    from foreword.recording import Recording

    recording = Recording.read(file)
    if html is not None:
        from foreword_server.page.files import Shown, write_self_contained

        write_self_contained(
            html,
            [Shown(recording.prompt, recording.as_json())],
            f"{recording.model}: a replay",
        )
        runtime.note(f"saved the replay to {html}")
        return
    scene = Scene(recording.model, recording.prompt)
    line = scene.line(recording.method)
    line.passes = len(recording.rounds)
    line.pieces += [piece for one in recording.rounds for piece in _pieces(one)]
    console = render.stdout()
    console.print(render.legend(), "", scene, "")
    if rounds:
        console.print(_rounds(recording), "")
    render.facts(_totals(recording))


def _pieces(round_: Round) -> list[tuple[str, Origin]]:
    """Return the text of each emitted token, and its origin."""
    origins: list[Origin] = [*("accepted" for _ in round_.accepted), "bonus"]
    # the answer may end inside the accepted path
    return list(zip(round_.pieces, origins, strict=False))


def _rounds(recording: Recording) -> Table[_Row]:
    """Return one row per round: drafted, emitted, or why nothing was drafted."""
    from rich.text import Text

    def why(round_: Round) -> Text:
        return Text(render.printable(round_.undrafted.text if round_.undrafted else ""))

    def number(head: str, cell: Callable[[int, Round], object]) -> Column[_Row]:
        return Column(head, lambda row: str(cell(*row)), no_wrap=True)

    columns = (
        number("round", lambda index, _: index),
        number("drafted", lambda _, round_: len(round_.draft)),
        number("accepted", lambda _, round_: len(round_.accepted)),
        number("ms", lambda _, round_: f"{round_.milliseconds:.1f}"),
        Column["_Row"](
            "tokens", lambda row: _emitted(row[1]), justify="left", folds=True
        ),
        Column["_Row"](
            "why nothing was drafted",
            lambda row: why(row[1]),
            justify="left",
            folds=True,
            style="dim",
        ),
    )
    return Table(list(enumerate(recording.rounds, 1)), columns, look=BARE)


def _emitted(round_: Round) -> Text:
    """Return the tokens of a round in their colours, white space made visible."""
    texts = [*(round_.draft[node].text for node in round_.accepted), round_.added.text]
    return render.coloured(
        (repr(text)[1:-1], origin)
        for text, (_, origin) in zip(texts, _pieces(round_), strict=False)
    )


def _totals(recording: Recording) -> dict[str, object]:
    totals = recording.totals
    plain = totals.plain_tokens_per_second
    pace = totals.tokens / totals.seconds if totals.seconds else 0.0
    return {
        "rule": recording.rule,
        "budget": recording.budget,
        "seed": str(recording.seed),
        "tokens": totals.tokens,
        "passes": totals.rounds,
        "tokens per pass": f"{totals.tokens_per_pass:.2f}",
        "draft tokens": totals.drafted,
        "accepted": f"{totals.accepted} ({totals.acceptance:.0%})",
        "seconds": f"{totals.seconds:.3f}",
        "tokens per second": f"{pace:.0f}"
        + (f" (plain decoding: about {plain:.0f})" if plain else ""),
        "rounds without a draft": totals.undrafted,
        "ended by": recording.finish_reason,
        "machine": f"{recording.machine.cpu}, {recording.machine.threads} threads",
    }
