"""Acceptance of a trained draft by its target on held-out prompts."""

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import chain, zip_longest
from pathlib import Path
from time import perf_counter
from typing import Any

import torch
import transformers

from foreword.api.llm import LLM
from foreword.types.params import SamplingParams
from foreword.types.stats import Stats
from foreword_train.log import Row
from foreword_train.report.card import card
from foreword_train.report.metrics import ALL, Metrics, TrainReport, summary

Prompt = tuple[str, Sequence[int]]
"""(source, token ids)."""


MOST, LEAST = 64, 4
"""Most and fewest prompts answered, where training decides the number."""
SHORT = 16
"""Tokens. Longest answer after the shortest training."""
EACH = 16
"""Trained tokens for each measured one: measuring takes less time than training."""
WAVE = 8
"""Prompts answered at a time; progress is shown after each."""
TRIAL = 8
"""Share of the longest answer that is written to estimate the time: one in so many."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Questions:
    """Size of the report's measurement."""

    prompts: int | None = None
    """Held-out prompts, spread evenly over the sources; 0 skips the measurement, None
    follows the training.
    """
    tokens: int = 64
    """Tokens. Longest answer."""
    depth: int = 5
    """Draft tokens per round."""
    temperatures: tuple[float, ...] = (0.0, 1.0)

    @property
    def most(self) -> int:
        """Most prompts that are answered."""
        return MOST if self.prompts is None else self.prompts

    def after(self, trained: int) -> "Questions":
        """Return the size after a training of so many tokens: after a short one fewer
        prompts, and shorter answers.
        """
        if self.prompts is not None:
            return self
        tokens = trained // EACH // len(self.temperatures)
        longest = min(self.tokens, max(SHORT, tokens // LEAST))
        return replace(
            self, prompts=min(MOST, max(LEAST, tokens // longest)), tokens=longest
        )


def report(
    target: str | None,
    folder: Path,
    prompts: Sequence[Prompt],
    rows: Sequence[Row],
    *,
    method: str,
    is_target: bool = False,
    parameters: int,
    settings: dict[str, Any],
    questions: Questions,
    trusted: bool = False,
    note: Callable[[str], None] = lambda _: None,
) -> TrainReport:
    """Measure the draft in `folder`; write report.json, README.md and (with matplotlib)
    acceptance.png there.

    `prompts` are (source, token ids) of the held-out records; `method` serves the draft
    of `parameters` parameters, or the model in `folder` itself if it `is_target`.
    `trusted` lets code of the models' own folders run.
    `note` gets lines that say what is measured, how long it takes, and how far it is.
    """
    trained = sum(row.tokens for row in rows)
    questions = questions.after(trained)
    selected = spread(prompts, questions.most)
    metrics: list[Metrics] = []
    if selected:
        llm = LLM(
            target,
            draft=None if is_target else folder,
            method=method,
            nodes=questions.depth,
            trust_remote_code=trusted,
        )
        answered = _Answered(len(selected), questions, note)
        answered.announce(_trial(llm, selected, questions))
        for temperature in questions.temperatures:
            metrics += measure(llm, selected, temperature, questions, answered)
    result = TrainReport(
        target,
        settings,
        {"torch": torch.__version__, "transformers": transformers.__version__},
        parameters,
        trained,
        next((row.held_out for row in reversed(rows) if row.held_out), {}),
        tuple(metrics),
    )
    _write(result, rows, folder, method if is_target else None)
    return result


def _write(
    result: TrainReport, rows: Sequence[Row], folder: Path, method: str | None
) -> None:
    """Write a report; `method` serves the target, if it was trained itself."""
    (folder / "report.json").write_text(
        json.dumps(result.as_json(), indent=2) + "\n", encoding="utf-8"
    )
    drawn = result.metrics and _draw(result, rows, folder / "acceptance.png")
    picture = "acceptance.png" if drawn else None
    text = card(result, picture=picture, method=method)
    (folder / "README.md").write_text(text, encoding="utf-8")


def measure(
    llm: LLM,
    prompts: Sequence[Prompt],
    temperature: float,
    questions: Questions,
    answered: Callable[[int], None] = lambda _: None,
) -> list[Metrics]:
    """Return metrics of every source at one temperature, and of all; a prompt's seed is
    its index in the list.

    `answered` gets the number of answers that are new, again and again.
    """
    stats: list[Stats] = []
    for start in range(0, len(prompts), WAVE):
        wave = prompts[start : start + WAVE]
        params = [
            SamplingParams(
                temperature=temperature, seed=seed, max_tokens=questions.tokens
            )
            for seed in range(start, start + len(wave))
        ]
        stats += [
            answer.stats
            for answer in llm.generate(_fitting(llm, wave, questions), params)
        ]
        answered(len(wave))
    by_source: dict[str, list[Stats]] = {}
    for (source, _), stat in zip(prompts, stats, strict=True):
        by_source.setdefault(source or "unnamed", []).append(stat)
    groups = {ALL: stats} | dict(sorted(by_source.items()))
    return [
        summary(name, temperature, some, questions.depth)
        for name, some in groups.items()
        if some
    ]


def _fitting(llm: LLM, prompts: Sequence[Prompt], questions: Questions) -> list[Any]:
    """Return the token ids of prompts, cut at their beginning where an answer would not
    fit into the context.
    """
    room = llm.target.context - questions.tokens
    return [list(ids[-room:]) for _, ids in prompts]


def _trial(llm: LLM, prompts: Sequence[Prompt], questions: Questions) -> float:
    """Return the estimated seconds of a wave of answers, from its first tokens."""
    tokens = max(1, questions.tokens // TRIAL)
    begun = perf_counter()
    params = SamplingParams(temperature=0.0, max_tokens=tokens, ignore_eos=True)
    llm.generate(_fitting(llm, prompts[:WAVE], questions), params)
    return (perf_counter() - begun) * questions.tokens / tokens


class _Answered:
    """Progress of the measurement, as lines that can be read in a pipe."""

    def __init__(
        self, prompts: int, questions: Questions, note: Callable[[str], None]
    ) -> None:
        self._prompts = prompts
        self._questions = questions
        self._note = note
        self._done, self._total = 0, prompts * len(questions.temperatures)
        self._begun = perf_counter()

    def announce(self, wave: float) -> None:
        """Say what is measured, and how long if a wave takes `wave` seconds."""
        waves = -(-self._prompts // WAVE) * len(self._questions.temperatures)
        heats = " and ".join(f"{heat:g}" for heat in self._questions.temperatures)
        self._note(
            f"measuring the draft: {self._prompts} held-out prompts, answers of up to "
            f"{self._questions.tokens} tokens, "
            f"at temperatures {heats}: {lasting(waves * wave)} at most"
        )
        self._begun = perf_counter()

    def __call__(self, new: int) -> None:
        """Say how many answers there are, and how long the others take."""
        self._done += new
        left = (perf_counter() - self._begun) * (self._total / self._done - 1)
        if self._done < self._total:
            self._note(f"{self._done} of {self._total} answers, {lasting(left)} left")


def lasting(seconds: float) -> str:
    """Return a duration in words."""
    return (
        f"about {max(1, round(seconds))} s"
        if seconds < 100
        else f"about {round(seconds / 60)} min"
    )


def spread(prompts: Sequence[Prompt], most: int) -> list[Prompt]:
    """Return at most `most` prompts, in turn from every source."""
    queues: dict[str, list[Prompt]] = {}
    for prompt in prompts:
        queues.setdefault(prompt[0], []).append(prompt)
    turns = chain.from_iterable(zip_longest(*queues.values()))
    return [turn for turn in turns if turn is not None][:most]


def _draw(result: TrainReport, rows: Sequence[Row], path: Path) -> bool:
    try:
        # needs matplotlib, which few installations have
        from foreword_train.report.plot import draw
    except ModuleNotFoundError:
        return False
    draw(result, rows, path)
    return True
