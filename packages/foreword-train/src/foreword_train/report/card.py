"""Model card of a trained drafter, in Markdown."""

from foreword_train.report.metrics import Interval, Metrics, TrainReport

CARD = """\
---
library_name: foreword
tags: [speculative-decoding, foreword{kind}]
---

{about}

## Guarantee

The target verifies every draft token, so this model changes speed alone: with the same seed the text is the one that
the target writes without it. Rules other than `match` keep the distribution of the text instead.
{acceptance}
## Speed

It depends on the machine. `foreword bench --method auto --draft {folder}{option}` compares it with plain decoding.

## Training
{held_out}
{settings}

Versions: {versions}.

The licences of the training data and of the target apply to this model too; name the data and state them here.
"""
FOLDER = "path/of/this/folder"
"""Stands for the folder in the card, until it is published."""
DRAFTER = """\
# A drafter for {target}

{parameters:,} parameters, trained on {learnt:,} tokens (each counted as often as it was learnt). It proposes draft
tokens for its target, which verifies each of them, so the text is the target's own.

```python
from foreword import LLM

llm = LLM({name}draft="{folder}")
```"""
TARGET = """\
# A model that drafts with its own first layers

{parameters:,} parameters, trained further on {learnt:,} tokens (each counted as often as it was learnt).

```python
from foreword import LLM

llm = LLM("{folder}", method="{method}")
```"""
ACCEPTANCE = """
## Acceptance

Share of draft tokens accepted at each depth, and tokens per pass of the target, on held-out prompts. In brackets: 95 %
bootstrap intervals over prompts.

{tables}
"""
HELD_OUT = """
At the end, on held-out text, for each token: {metrics} (acceptance: 1 - TV at temperature 1; agreement: same argmax).
"""


def card(
    report: TrainReport, picture: str | None = None, method: str | None = None
) -> str:
    """Return the card: use, acceptance and training of the drafter.

    `picture` is a file beside the card. `method` serves a target that was trained
    itself.
    """
    tables = [
        _table(report, heat)
        for heat in sorted({row.temperature for row in report.metrics})
    ]
    shown = (
        [f"![acceptance by depth, and the training curve]({picture})"]
        if picture
        else []
    )
    metrics = ", ".join(
        f"{name} {value:.3f}" for name, value in report.held_out.items()
    )
    about = (DRAFTER if method is None else TARGET).format(
        target=f"`{report.target}`"
        if report.target
        else "the target bundled with Foreword",
        name=f'"{report.target}", ' if report.target else "",
        parameters=report.parameters,
        learnt=report.learnt,
        method=method,
        folder=FOLDER,
    )
    kind = report.settings.get("method")
    return CARD.format(
        about=about,
        kind=f", {kind}" if kind else "",
        folder=FOLDER,
        option=f" --model {report.target}" if report.target else "",
        acceptance=ACCEPTANCE.format(tables="\n\n".join([*tables, *shown]))
        if tables
        else "",
        held_out=HELD_OUT.format(metrics=metrics) if metrics else "",
        settings="\n".join(
            f"- {name.replace('_', ' ')}: {value}"
            for name, value in report.settings.items()
        ),
        versions=", ".join(
            f"{name} {version}" for name, version in report.versions.items()
        ),
    )


def _table(report: TrainReport, temperature: float) -> str:
    rows = [row for row in report.metrics if row.temperature == temperature]
    depth = max(len(row.acceptance) for row in rows)
    head = [
        "domain",
        "prompts",
        "tokens per pass",
        *(f"depth {place + 1}" for place in range(depth)),
    ]
    table = [
        head,
        ["---", *["---:"] * (len(head) - 1)],
        *(_row(row, depth) for row in rows),
    ]
    return f"Temperature {temperature:g}:\n\n" + "\n".join(
        "| " + " | ".join(cells) + " |" for cells in table
    )


def _row(row: Metrics, depth: int) -> list[str]:
    values = [
        _interval(value, row.prompts)
        for value in (row.tokens_per_pass, *row.acceptance)
    ]
    return [
        row.domain,
        str(row.prompts),
        *values,
        *["–"] * (depth - len(row.acceptance)),
    ]


def _interval(value: Interval, prompts: int) -> str:
    # One prompt gives no interval.
    return value.text if prompts > 1 else f"{value.mid:.2f}"
