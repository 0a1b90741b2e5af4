"""`foreword whatif`: a recorded answer, re-scored for every other method."""

import json as encode
import sys
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.text import Text

from foreword.cli.common import early, options, render
from foreword.cli.common.bundles import bundled, open_llm
from foreword.cli.common.options import option
from foreword.cli.common.progress import LineProgress
from foreword.cli.common.tables import BARE, WIDE, Column, Table, figure_column
from foreword.errors import InvalidRequest
from foreword.options import DraftingOptions, ModelOptions
from foreword.registry import DEFAULT_RULE, PLAIN

if TYPE_CHECKING:
    from foreword.hindsight.whatif import Outcome, WhatIf
    from foreword.recording import Recording
    from foreword.types.round import Round

FEWEST, MOST = 1, 64
"""Draft tokens in a round that --nodes may name."""
SHOWN = 12
"""Rounds of each method that --trees shows."""


File = Annotated[
    Path,
    typer.Argument(
        help="Recording, from `foreword generate --record` or the page.",
        metavar="RECORDING",
        callback=options.checked(lambda file: early.there(file)),
    ),
]
Methods = Annotated[
    list[str] | None,
    option(
        None,
        "--method",
        "Method to compare. Repeatable. Default: all usable ones.",
        "NAME",
    ),
]
Nodes = Annotated[str, option(None, "--nodes", "Draft tokens in a round.", "N,N,…")]
Rules = Annotated[
    list[str] | None,
    option(
        None,
        "--rule",
        "Verification rule to compare. Repeatable. Default: match.",
        "NAME",
    ),
]
Trees = Annotated[bool, option(None, "--trees", "What each round would have drafted.")]


@bundled
def whatif(
    file: File,
    *,
    model: options.ModelName = None,
    draft: options.DraftName = None,
    loading: ModelOptions,
    method: Methods = None,
    nodes: Nodes = "4,8,16",
    rule: Rules = None,
    trees: Trees = False,
    as_json: options.AsJson = False,
) -> None:
    """Re-score a recorded answer for every other method, without writing it again.

    The text does not depend on the drafter, so rounds and tokens per pass are facts.
    Seconds are predicted from this machine's measured costs. The target itself runs
    only for drafters that read its scores or hidden states. Under another rule than
    match it runs as well, and rounds are a sample, given the text.
    """
    from foreword.draft import method as find_method
    from foreword.hindsight.known_rule import check_rule
    from foreword.hindsight.whatif import what_if
    from foreword.recording import Recording

    counts = early.numbers("'--nodes'", nodes)
    if not all(FEWEST <= one <= MOST for one in counts):
        raise InvalidRequest(
            f"cannot use '--nodes' {nodes!r}: a round drafts {FEWEST} to {MOST} "
            "tokens. Give 4,8,16"
        )
    for name in method or ():
        find_method(name)
    for name in rule or ():
        check_rule(name)
    recording = Recording.read(file)
    with (
        open_llm(model, draft, loading, DraftingOptions()) as llm,
        LineProgress(quiet=as_json) as progress,
    ):
        result = what_if(
            llm,
            recording,
            method or None,
            counts,
            progress,
            rules=rule or (DEFAULT_RULE,),
        )
    if as_json:
        sys.stdout.write(encode.dumps(result.as_json(trees=trees)) + "\n")
        return
    console = render.stdout()
    console.print(_table(result, recording))
    if trees:
        for outcome in result.outcomes:
            console.print(_trees(outcome))
    for left in result.left_out:
        render.notes().print(f"left out: {left.method}: {left.why}", markup=False)


def _table(result: "WhatIf", recording: "Recording") -> "Table[Outcome]":
    """Return one row per method and number of draft tokens, the fastest first."""
    has_rules = any(one.rule != DEFAULT_RULE for one in result.outcomes)
    rules = [Column["Outcome"]("rule", _rule, justify="left")] if has_rules else []

    return Table(
        result.outcomes,
        (
            Column["Outcome"]("method", _method, justify="left"),
            *rules,
            figure_column("draft tokens", lambda row: str(row.nodes or "–")),
            figure_column("passes", lambda row: str(row.passes)),
            figure_column("per pass", lambda row: f"{row.tokens_per_pass:.2f}"),
            figure_column("accepted", _accepted),
            figure_column("ms", lambda row: f"{1000 * row.seconds:.0f}"),
            figure_column("× plain", lambda row: f"{row.over_plain:.2f}"),
        ),
        title=f"this answer of {result.outcomes[0].tokens} tokens, with …",
        caption="seconds are predicted; ¹ the target read the text again\n"
        + _as_recorded(result, recording),
        look=WIDE,
        emphasis=lambda row: "bold" if row.method == PLAIN else None,
    )


def _method(row: "Outcome") -> str:
    return row.method + ("¹" if row.reread else "")


def _rule(row: "Outcome") -> str:
    return row.rule if row.drafted else "–"


def _accepted(row: "Outcome") -> str:
    return f"{row.accepted} of {row.drafted}" if row.drafted else "–"


def _as_recorded(result: "WhatIf", recording: "Recording") -> str:
    """Return how the answer was written, and what the best constant choice saved."""
    row = result.recorded
    rest = f"{1000 * row.seconds:.0f} ms, {row.over_plain:.2f} × plain"
    against = "more than the best above" if result.regret > 0 else "less than all above"
    return (
        f"as recorded: {recording.method}, budget {recording.budget}, {row.passes} "
        f"passes, {rest}: {abs(result.regret):.0%} {against}"
    )


def _trees(outcome: "Outcome") -> Table[tuple[str, str | Text]]:
    """Return what each round drafted: accepted tokens green, refused ones struck."""
    by = "" if outcome.rule == DEFAULT_RULE else f", {outcome.rule}"
    refused = outcome.refused or (0,) * len(outcome.rounds)
    played = zip(outcome.rounds[:SHOWN], refused, strict=False)
    rows: list[tuple[str, str | Text]] = [
        (str(number), _drafted(round_, more))
        for number, (round_, more) in enumerate(played, 1)
    ]
    if len(outcome.rounds) > SHOWN:
        rows.append(("…", f"{len(outcome.rounds) - SHOWN} more"))
    return Table(
        rows,
        (
            Column("round", lambda row: row[0]),
            Column("drafted", lambda row: row[1], justify="left", folds=True),
        ),
        title=f"{outcome.method}, {outcome.nodes} draft tokens{by}",
        look=replace(BARE, header_style="table.header"),
    )


def _drafted(round_: "Round", more: int) -> Text:
    """Return a round; `more`: refused draft tokens that are not known."""
    from rich.text import Text

    text = Text()
    for node, token in enumerate(round_.draft):
        is_accepted = node in round_.accepted
        style = "green" if is_accepted else "dim strike"
        text.append(repr(token.text)[1:-1], style)
    if more:
        text.append(f" +{more} refused ", "dim")
    text.append(repr(round_.added.text)[1:-1], "bold")
    return text
