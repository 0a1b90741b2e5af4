"""Time profile of a decoding round: by step, and by forwards of the target, of the
draft model and the remainder.
"""

from __future__ import annotations

from rich.box import SIMPLE_HEAD
from rich.table import Table

from foreword.bench.decoding import STEPS, Decoding
from foreword.bench.report import Report

BY_STEP, BY_MODEL = (*STEPS, "between"), ("target", "draft", "outside")


def parts(decoding: Decoding) -> dict[str, float]:
    """Return the mean seconds of a round, split twice: the keys of BY_STEP sum to it,
    and so do the keys of BY_MODEL.
    """
    whole, steps = decoding.round_seconds, decoding.step_seconds
    target, draft = decoding.target_forward_seconds, decoding.draft_forward_seconds
    between = whole - sum(steps.values())
    return {
        **steps,
        "between": between,
        "target": target,
        "draft": draft,
        "outside": whole - target - draft,
    }


def table(report: Report) -> Table:
    """Return a table of milliseconds and shares of a round, for every entry with
    visible rounds.
    """
    table = Table(
        title=f"{report.target}: time of a decoding round (ms, and share of the round)",
        caption="rounds that read a prompt are left out; "
        "between: time outside the four steps\n"
        "¹ the same time split by forwards: of the target, of a draft model, and "
        "outside both",
        box=SIMPLE_HEAD,
        padding=(0, 1, 0, 0),
        pad_edge=False,
    )
    table.add_column("method", no_wrap=True)
    for head in ("T", "round", *BY_STEP, *(f"{part}¹" for part in BY_MODEL)):
        table.add_column(head, justify="right", no_wrap=True)
    for row in report.rows:
        if row.decoding is None:
            continue
        whole = row.decoding.round_seconds
        seconds = parts(row.decoding)
        shown = (
            f"{1e3 * seconds[part]:.2f} {seconds[part] / whole:4.0%}"
            for part in (*BY_STEP, *BY_MODEL)
        )
        table.add_row(row.name, f"{row.temperature:g}", f"{1e3 * whole:.2f}", *shown)
    return table
