"""Time profile of a decoding round: by step, and by forwards of the target, of the
draft model and the remainder.
"""

from collections.abc import Callable
from operator import itemgetter
from typing import TypeAlias

from foreword.cli.common.tables import Table, figure_column, name_column
from foreword_lab.bench.decoding import STEPS, Decoding
from foreword_lab.bench.report import Report, Row

_Profile: TypeAlias = tuple[Row, Decoding]
BY_STEP = (*STEPS, "between")
BY_MODEL = ("target", "draft", "outside")


def parts(decoding: Decoding) -> dict[str, float]:
    """Return the mean seconds of a round, split twice: the keys of BY_STEP sum to it,
    and so do the keys of BY_MODEL.
    """
    whole, steps = decoding.round_seconds, decoding.step_seconds
    target = decoding.target_forward_seconds
    draft = decoding.draft_forward_seconds
    between = whole - sum(steps.values())
    return {
        **steps,
        "between": between,
        "target": target,
        "draft": draft,
        "outside": whole - target - draft,
    }


def table(report: Report) -> Table[_Profile]:
    """Return a table of milliseconds and shares of a round, by entry with rounds."""
    return Table(
        [(row, row.decoding) for row in report.rows if row.decoding is not None],
        (
            name_column("method", lambda pair: pair[0].name),
            figure_column("T", lambda pair: f"{pair[0].temperature:g}"),
            figure_column("round", lambda pair: _ms(pair[1].round_seconds)),
            *(figure_column(part, _part(part)) for part in BY_STEP),
            *(figure_column(f"{part}¹", _part(part)) for part in BY_MODEL),
        ),
        title=f"{report.target}: time of a decoding round (ms, and share of the round)",
        caption="rounds that read a prompt are left out; "
        "between: time outside the four steps\n"
        "¹ the same time split by forwards: of the target, of a draft model, and "
        "outside both" + "".join(map(_chosen, report.rows)),
    )


def _chosen(row: Row) -> str:
    """Return a line on the methods among which an entry chose."""
    if row.decoding is None or not row.by_method:
        return ""
    expected = row.decoding.expected_speeds
    named = [
        f"{method} {tokens} (expected {expected[method]:.2f})"
        if method in expected
        else f"{method} {tokens}"
        for method, tokens in sorted(row.by_method.items(), key=itemgetter(1))[::-1]
    ]
    return (
        f"\n{row.name}, T = {row.temperature:g}: tokens by method (and tokens expected "
        f"in the time of a plain round): {', '.join(named)}"
    )


def _part(name: str) -> Callable[[_Profile], str]:
    """Return what writes a part: milliseconds, and its share of the round."""

    def cell(pair: _Profile) -> str:
        decoding = pair[1]
        seconds = parts(decoding)[name]
        share = seconds / decoding.round_seconds
        return f"{_ms(seconds)} {share:4.0%}"

    return cell


def _ms(seconds: float) -> str:
    return f"{1e3 * seconds:.2f}"
