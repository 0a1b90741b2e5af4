"""What a trained draft is worth: it guesses for its target on held-out prompts, and its guesses are counted.

Knows the LLM and figures; knows nothing about training.
"""

from __future__ import annotations

import json
from collections.abc import Sequence as List
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import transformers

from foreword.llm import LLM
from foreword.params import SamplingParams
from foreword.stats import Stats
from foreword.train.card import card
from foreword.train.figures import ALL, Figures, Report, summary
from foreword.train.log import Row

Prompt = tuple[str, List[int]]
"""(source, token ids)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Questions:
    """What is measured."""

    prompts: int = 64
    """Held-out prompts, as evenly from all sources as can be; 0 measures nothing."""
    tokens: int = 64
    """At most this long answers."""
    depth: int = 5
    """Guesses in a round."""
    temperatures: tuple[float, ...] = (0.0, 1.0)


def report(
    target: str | None,
    folder: Path,
    prompts: List[Prompt],
    rows: List[Row],
    *,
    method: str,
    parameters: int,
    settings: dict[str, Any],
    questions: Questions,
) -> Report:
    """Measure the draft in `folder` and write report.json, README.md and (where matplotlib is) acceptance.png there.

    `prompts` are (source, token ids) of the held-out records, `method` serves the draft, which holds so many
    `parameters`.
    """
    chosen = spread(prompts, questions.prompts)
    llm = LLM(target, draft=folder, method=method, nodes=questions.depth)
    found = Report(
        target,
        settings,
        {"torch": torch.__version__, "transformers": transformers.__version__},
        parameters,
        sum(row.tokens for row in rows),
        next((row.held_out for row in reversed(rows) if row.held_out), {}),
        tuple(figure for heat in questions.temperatures for figure in measure(llm, chosen, heat, questions)),
    )
    (folder / "report.json").write_text(json.dumps(found.as_json(), indent=2) + "\n", encoding="utf-8")
    drawn = found.figures and _draw(found, rows, folder / "acceptance.png")
    (folder / "README.md").write_text(card(found, picture="acceptance.png" if drawn else None), encoding="utf-8")
    return found


def measure(llm: LLM, prompts: List[Prompt], temperature: float, questions: Questions) -> list[Figures]:
    """Figures of every source at one temperature, and of all; the seed of a prompt is its place in the list."""
    room = llm.target.context - questions.tokens
    params = [
        SamplingParams(temperature=temperature, seed=seed, max_tokens=questions.tokens) for seed in range(len(prompts))
    ]
    answers = llm.generate([list(ids[-room:]) for _, ids in prompts], params)
    by_source: dict[str, list[Stats]] = {}
    for (source, _), answer in zip(prompts, answers, strict=True):
        by_source.setdefault(source or "unnamed", []).append(answer.stats)
    groups = {ALL: [answer.stats for answer in answers]} | dict(sorted(by_source.items()))
    return [summary(name, temperature, stats, questions.depth) for name, stats in groups.items() if stats]


def spread(prompts: List[Prompt], most: int) -> list[Prompt]:
    """At most so many prompts, in turn from every source."""
    queues: dict[str, list[Prompt]] = {}
    for prompt in prompts:
        queues.setdefault(prompt[0], []).append(prompt)
    turns = [
        queue[turn]
        for turn in range(max(map(len, queues.values()), default=0))
        for queue in queues.values()
        if turn < len(queue)
    ]
    return turns[:most]


def _draw(found: Report, rows: List[Row], path: Path) -> bool:
    try:
        from foreword.train.plot import draw  # needs matplotlib, which few installations have
    except ModuleNotFoundError:
        return False
    draw(found, rows, path)
    return True
