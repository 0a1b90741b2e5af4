"""The model card of a trained drafter, in Markdown. Knows a report; knows nothing about how it was measured."""

from __future__ import annotations

from foreword.train.figures import Figures, Interval, Report

CARD = """\
---
library_name: transformers
tags: [speculative-decoding]
---

# A drafter for {target}

{parameters:,} parameters, trained on {learnt:,} tokens (each counted as often as it was learnt). It guesses what its
target will say; the target checks every guess, so the text is the target's own.

```python
from foreword import LLM

llm = LLM({name}draft="path/of/this/folder")
```
{acceptance}
## Training
{held_out}
{settings}

Versions: {versions}.

What the licences of the training data and of the target ask for holds for this model too; state it here.
"""
ACCEPTANCE = """
## Acceptance

How often a guess at each depth is kept, and tokens written per pass of the target, on prompts that it was not trained
on. In brackets: 95 % bootstrap intervals over prompts.

{tables}
"""
HELD_OUT = """
At the end, on held-out text, for each token: {figures} (acceptance: 1 - TV at temperature 1; agreement: the same token
is likeliest).
"""


def card(report: Report, picture: str | None = None) -> str:
    """What it is, how to use it, what it is worth, how it was made. `picture` is a file beside the card."""
    tables = [_table(report, heat) for heat in sorted({figure.temperature for figure in report.figures})]
    shown = [f"![acceptance by depth, and the course of the training]({picture})"] if picture else []
    figures = ", ".join(f"{name} {value:.3f}" for name, value in report.held_out.items())
    return CARD.format(
        target=f"`{report.target}`" if report.target else "the family that ships with Foreword",
        name=f'"{report.target}", ' if report.target else "",
        parameters=report.parameters,
        learnt=report.learnt,
        acceptance=ACCEPTANCE.format(tables="\n\n".join([*tables, *shown])) if tables else "",
        held_out=HELD_OUT.format(figures=figures) if figures else "",
        settings="\n".join(f"- {name.replace('_', ' ')}: {value}" for name, value in report.settings.items()),
        versions=", ".join(f"{name} {version}" for name, version in report.versions.items()),
    )


def _table(report: Report, temperature: float) -> str:
    rows = [figure for figure in report.figures if figure.temperature == temperature]
    depth = max(len(row.acceptance) for row in rows)
    head = ["domain", "prompts", "tokens per pass", *(f"depth {place + 1}" for place in range(depth))]
    table = [head, ["---", *["---:"] * (len(head) - 1)], *(_row(row, depth) for row in rows)]
    return f"Temperature {temperature:g}:\n\n" + "\n".join("| " + " | ".join(cells) + " |" for cells in table)


def _row(row: Figures, depth: int) -> list[str]:
    values = [_interval(value, row.prompts) for value in (row.tokens_per_pass, *row.acceptance)]
    return [row.domain, str(row.prompts), *values, *["–"] * (depth - len(row.acceptance))]


def _interval(value: Interval, prompts: int) -> str:
    # One prompt says nothing of how others would do.
    return f"{value.mid:.2f} ({value.low:.2f}–{value.high:.2f})" if prompts > 1 else f"{value.mid:.2f}"
