"""Final comparison: times the best masks against plain decoding, then the fastest of
them on other prompts.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from time import sleep
from typing import Protocol, runtime_checkable

import numpy as np

from foreword.api.llm import LLM
from foreword.bench.engine_entry import EngineEntry
from foreword.bench.race import REST
from foreword.bench.records import BenchRequest, Trial
from foreword.bench.stats import Costs, Interval, speed, speedup
from foreword.budget import FixedBudget, policy
from foreword.draft.none import NoDrafter
from foreword.draft.self_speculative.base import SPARE
from foreword.draft.self_speculative.layers import LayersDrafter, Mask, costs
from foreword.engine import Engine
from foreword.engine.scheduler import Scheduler
from foreword.model import measure
from foreword.model.view import view
from foreword.registry import DEFAULT_BUDGET
from foreword.verify import rule

FINALISTS = 3
"""Number of masks that are timed in an engine."""
OTHERS = ("confidence", "adaedl")
"""Draft budgets tried with the best mask besides the default. As in Draft & Verify
(Zhang et al. 2024), one drafts while its confidence is above a threshold, and the other
adapts that threshold to an acceptance of 0.9."""
ROUNDS = 2
"""Runs of every prompt."""


@runtime_checkable
class AnswerSettings(Protocol):
    """Sampling settings of each answer."""

    @property
    def temperature(self) -> float: ...
    @property
    def tokens(self) -> int: ...
    @property
    def seed(self) -> int: ...


@dataclass(frozen=True, slots=True)
class Finalist:
    """One of the compared pairs of mask and draft budget."""

    mask: Mask
    budget: str
    over_plain: float
    """Tokens per second / tokens per second of plain decoding."""


@dataclass(frozen=True, slots=True)
class FinalComparison:
    """The fastest pair of mask and draft budget, measured on prompts that did not
    select it.
    """

    mask: Mask
    budget: str
    """The draft budget that was fastest with it."""
    over_plain: Interval
    tokens_per_second: float
    plain: float
    """Tokens per second of plain decoding."""
    tokens_per_pass: float
    entries: tuple[Finalist, ...]
    """All pairs it was selected from."""


@dataclass(frozen=True, slots=True)
class _Runner:
    mask: Mask
    budget: str
    entry: EngineEntry


def compare_finalists(
    llm: LLM,
    ranked: Sequence[Mask],
    splits: Sequence[Sequence[Sequence[int]]],
    settings: AnswerSettings,
    note: Callable[[str], None],
) -> FinalComparison:
    """Select on the prompts of the first split, measure on the second.

    `ranked` are masks, best first.
    """
    runners = _runners(llm, ranked)
    plain, others = runners[0], runners[1:]
    first, second = (
        _requests(llm, split, settings, place) for place, split in enumerate(splits, 1)
    )
    note(f"timing the {len(others)} best against plain decoding, {len(first)} prompts")
    selection = _answers(runners, first)
    by_plain = speed(_costs(selection[0]))
    entries = tuple(
        Finalist(one.mask, one.budget, speed(_costs(trials)) / by_plain)
        for one, trials in zip(others, selection[1:], strict=True)
    )
    best = max(range(len(others)), key=lambda place: entries[place].over_plain)
    note(f"timing the fastest again, on {len(second)} other prompts")
    slow, fast = _answers([plain, others[best]], second)
    passes = sum(trial.passes or 0 for trials in fast for trial in trials)
    return FinalComparison(
        others[best].mask,
        others[best].budget,
        speedup(_costs(fast), _costs(slow)),
        speed(_costs(fast)),
        speed(_costs(slow)),
        sum(len(trial.tokens) for trials in fast for trial in trials) / max(1, passes),
        entries,
    )


def _runners(llm: LLM, ranked: Sequence[Mask]) -> list[_Runner]:
    """Return runners of plain decoding and of the best masks with their draft
    budgets.
    """
    pairs = [(mask, DEFAULT_BUDGET) for mask in ranked[:FINALISTS]] + [
        (ranked[0], budget) for budget in OTHERS
    ]
    halves, cost = costs(llm.target), measure(llm.target)
    engines = [
        Engine(
            llm.target, NoDrafter(), rule("match"), FixedBudget(0), Scheduler(slots=1)
        )
    ]
    for mask, budget in pairs:
        drafter = LayersDrafter(view(llm.target, spare=SPARE), halves, mask)
        limit = policy(budget)(lambda: cost)
        engines.append(
            Engine(llm.target, drafter, rule("match"), limit, Scheduler(slots=1))
        )
    # After all drafters: the timed backend of an entry hides the model's own from them.
    entries = [
        EngineEntry(f"mask {place}", engine, llm.tokenizer)
        for place, engine in enumerate(engines)
    ]
    labels = [(frozenset[int](), "plain"), *pairs]
    return [
        _Runner(*label, entry) for label, entry in zip(labels, entries, strict=True)
    ]


def _requests(
    llm: LLM, prompts: Sequence[Sequence[int]], settings: AnswerSettings, split: int
) -> list[BenchRequest]:
    room = llm.target.context - settings.tokens
    seeds = range(
        settings.seed + split * len(prompts), settings.seed + (split + 1) * len(prompts)
    )
    return [
        BenchRequest(
            str(seed),
            tuple(prompt[-room:]),
            settings.temperature,
            seed,
            settings.tokens,
        )
        for seed, prompt in zip(seeds, prompts, strict=True)
    ]


def _answers(
    runners: Sequence[_Runner], requests: Sequence[BenchRequest]
) -> list[list[list[Trial]]]:
    """Return runner -> prompt -> trials, interleaved in a rotating order after one
    warm-up request.
    """
    trials: list[list[list[Trial]]] = [[[] for _ in requests] for _ in runners]
    places = list(range(len(runners)))
    for runner in runners:
        runner.entry.run(requests[0])
    for turn in range(ROUNDS * len(requests)):
        at, first = turn % len(requests), turn % len(runners)
        for place in [*places[first:], *places[:first]]:
            sleep(REST)
            trials[place][at].append(runners[place].entry.run(requests[at]))
    return trials


def _costs(trials: Sequence[Sequence[Trial]]) -> Costs:
    return np.array(
        [
            [sum(len(t.tokens) for t in one), sum(t.seconds for t in one)]
            for one in trials
        ],
        dtype=float,
    )
