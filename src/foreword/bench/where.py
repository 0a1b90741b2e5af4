"""Where a decoding round goes: its steps, and inside them the forwards of target and draft model and all the rest.

Knows finished reports; knows nothing about how they were measured.
"""

from __future__ import annotations

from rich.box import SIMPLE_HEAD
from rich.table import Table

from foreword.bench.report import STEPS, Decoding, Report

BY_STEP, BY_MODEL = (*STEPS, "between"), ("target", "draft", "outside")


def parts(decoding: Decoding) -> dict[str, float]:
    """Mean seconds of a round, cut in two ways: the parts of BY_STEP make it up, and so do those of BY_MODEL."""
    whole, steps = decoding.whole_round_seconds, decoding.round_seconds
    target, draft = decoding.target_forward_seconds, decoding.draft_forward_seconds
    between = whole - sum(steps.values())
    return {**steps, "between": between, "target": target, "draft": draft, "outside": whole - target - draft}


def table(report: Report) -> Table:
    """Milliseconds and shares of a round, for every contender whose rounds can be seen."""
    made = Table(
        title=f"{report.target}: where a decoding round goes (ms, and share of the round)",
        caption="rounds that read a prompt are left out; between: what the loop does outside of its four steps\n"
        "¹ the same time cut another way: inside forwards of the target, of a draft model, and outside of both",
        box=SIMPLE_HEAD,
        padding=(0, 1, 0, 0),
        pad_edge=False,
    )
    made.add_column("method", no_wrap=True)
    for head in ("T", "round", *BY_STEP, *(f"{part}¹" for part in BY_MODEL)):
        made.add_column(head, justify="right", no_wrap=True)
    for row in report.rows:
        if row.decoding is None:
            continue
        whole = row.decoding.whole_round_seconds
        found = parts(row.decoding)
        shown = (f"{1e3 * found[part]:.2f} {found[part] / whole:4.0%}" for part in (*BY_STEP, *BY_MODEL))
        made.add_row(row.name, f"{row.temperature:g}", f"{1e3 * whole:.2f}", *shown)
    return made
