"""Measurement of a trained draft: acceptance by its target on held-out prompts, in the engine."""

from __future__ import annotations

import json
from collections.abc import Sequence as List
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import transformers

from foreword.llm import LLM
from foreword.train.log import Row
from foreword.train.report.card import card
from foreword.train.report.metrics import ALL, Metrics, TrainReport, summary
from foreword.types.params import SamplingParams
from foreword.types.stats import Stats

Prompt = tuple[str, List[int]]
"""(source, token ids)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Questions:
    """Size of the report's measurement."""

    prompts: int = 64
    """Held-out prompts, spread evenly over the sources; 0 skips the measurement."""
    tokens: int = 64
    """Tokens. Longest answer."""
    depth: int = 5
    """Draft tokens per round."""
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
    trusted: bool = False,
) -> TrainReport:
    """Measure the draft in `folder`; write report.json, README.md and (with matplotlib) acceptance.png there.

    `prompts` are (source, token ids) of the held-out records; `method` serves the draft of `parameters` parameters.
    `trusted` lets code of the models' own folders run.
    """
    selected = spread(prompts, questions.prompts)
    llm = LLM(target, draft=folder, method=method, nodes=questions.depth, trust_remote_code=trusted)
    result = TrainReport(
        target,
        settings,
        {"torch": torch.__version__, "transformers": transformers.__version__},
        parameters,
        sum(row.tokens for row in rows),
        next((row.held_out for row in reversed(rows) if row.held_out), {}),
        tuple(row for heat in questions.temperatures for row in measure(llm, selected, heat, questions)),
    )
    (folder / "report.json").write_text(json.dumps(result.as_json(), indent=2) + "\n", encoding="utf-8")
    drawn = result.metrics and _draw(result, rows, folder / "acceptance.png")
    (folder / "README.md").write_text(card(result, picture="acceptance.png" if drawn else None), encoding="utf-8")
    return result


def measure(llm: LLM, prompts: List[Prompt], temperature: float, questions: Questions) -> list[Metrics]:
    """Return metrics of every source at one temperature, and of all; a prompt's seed is its index in the list."""
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
    """Return at most `most` prompts, in turn from every source."""
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


def _draw(result: TrainReport, rows: List[Row], path: Path) -> bool:
    try:
        from foreword.train.report.plot import draw  # needs matplotlib, which few installations have
    except ModuleNotFoundError:
        return False
    draw(result, rows, path)
    return True
