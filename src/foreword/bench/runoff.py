"""The best masks decode for real, beside plain decoding, and then the fastest of them once more on texts of its own.

Knows engines and clocks; knows nothing about how masks were found.
"""

from __future__ import annotations

from collections.abc import Callable
from collections.abc import Sequence as List
from dataclasses import dataclass
from time import sleep
from typing import Protocol, runtime_checkable

import numpy as np

from foreword.bench.contender import EngineContender
from foreword.bench.race import REST
from foreword.bench.stats import Costs, Interval, speed, speedup
from foreword.bench.trial import Request, Trial
from foreword.draft.layers import LayersDrafter, Mask, costs
from foreword.draft.none import NoDrafter
from foreword.draft.own import SPARE
from foreword.engine import Engine
from foreword.llm import LLM
from foreword.model import measure
from foreword.model.view import view
from foreword.scheduler import Scheduler
from foreword.verify import rule
from foreword.width import USUAL, Fixed, policy

FINALISTS = 3
"""Masks that decode for real."""
OTHERS = ("confidence", "adaedl")
"""Widths beside the usual one, tried with the best mask: one guesses on while it is sure, as Draft & Verify does, and
one moves that threshold so that nine in ten guesses are kept, as Draft & Verify does too."""
ROUNDS = 2
"""Times each prompt is answered."""


@runtime_checkable
class Wishes(Protocol):
    """What is asked of each answer."""

    @property
    def temperature(self) -> float: ...
    @property
    def tokens(self) -> int: ...
    @property
    def seed(self) -> int: ...


@dataclass(frozen=True, slots=True)
class Entry:
    """One of those that were timed beside each other."""

    mask: Mask
    width: str
    over_plain: float
    """Tokens per second, over those of plain decoding."""


@dataclass(frozen=True, slots=True)
class Runoff:
    """The fastest, measured on prompts that it was not chosen by."""

    mask: Mask
    width: str
    """What served it best."""
    over_plain: Interval
    tokens_per_second: float
    plain: float
    """Tokens per second of plain decoding."""
    tokens_per_pass: float
    entries: tuple[Entry, ...]
    """What it was chosen from, and by."""


@dataclass(frozen=True, slots=True)
class _Runner:
    mask: Mask
    width: str
    contender: EngineContender


def runoff(
    llm: LLM, ranked: List[Mask], hands: List[List[List[int]]], wishes: Wishes, note: Callable[[str], None]
) -> Runoff:
    """Choose by the prompts of the first hand, measure by those of the second. `ranked` are masks, best first."""
    runners = _runners(llm, ranked)
    plain, others = runners[0], runners[1:]
    first, second = (_requests(llm, hand, wishes, place) for place, hand in enumerate(hands, 1))
    note(f"timing the {len(others)} best beside plain decoding, {len(first)} prompts")
    chosen_by = _answers(runners, first)
    by_plain = speed(_costs(chosen_by[0]))
    entries = tuple(
        Entry(one.mask, one.width, speed(_costs(trials)) / by_plain)
        for one, trials in zip(others, chosen_by[1:], strict=True)
    )
    best = max(range(len(others)), key=lambda place: entries[place].over_plain)
    note(f"timing the fastest once more, on {len(second)} other prompts")
    slow, fast = _answers([plain, others[best]], second)
    passes = sum(trial.passes or 0 for trials in fast for trial in trials)
    return Runoff(
        others[best].mask,
        others[best].width,
        speedup(_costs(fast), _costs(slow)),
        speed(_costs(fast)),
        speed(_costs(slow)),
        sum(len(trial.tokens) for trials in fast for trial in trials) / max(1, passes),
        entries,
    )


def _runners(llm: LLM, ranked: List[Mask]) -> list[_Runner]:
    """Plain decoding, and the best masks with the widths that they are tried with."""
    pairs = [(mask, USUAL) for mask in ranked[:FINALISTS]] + [(ranked[0], width) for width in OTHERS]
    halves, cost = costs(llm.target), measure(llm.target)
    engines = [Engine(llm.target, NoDrafter(), rule("match"), Fixed(0), Scheduler(slots=1))]
    for mask, width in pairs:
        drafter = LayersDrafter(view(llm.target, spare=SPARE), halves, mask)
        decides = policy(width)(lambda: cost)
        engines.append(Engine(llm.target, drafter, rule("match"), decides, Scheduler(slots=1)))
    # After all drafters: the clock that contenders put around a model hides it from them.
    made = [EngineContender(f"mask {place}", engine, llm.tokenizer) for place, engine in enumerate(engines)]
    labels = [(frozenset[int](), "plain"), *pairs]
    return [_Runner(*label, contender) for label, contender in zip(labels, made, strict=True)]


def _requests(llm: LLM, prompts: List[List[int]], wishes: Wishes, hand: int) -> list[Request]:
    room = llm.target.context - wishes.tokens
    seeds = range(wishes.seed + hand * len(prompts), wishes.seed + (hand + 1) * len(prompts))
    return [
        Request(str(seed), tuple(prompt[-room:]), wishes.temperature, seed, wishes.tokens)
        for seed, prompt in zip(seeds, prompts, strict=True)
    ]


def _answers(runners: List[_Runner], requests: List[Request]) -> list[list[list[Trial]]]:
    """What each did with each prompt, in turns whose order rotates; the first request is asked once for nothing."""
    found: list[list[list[Trial]]] = [[[] for _ in requests] for _ in runners]
    places = list(range(len(runners)))
    for runner in runners:
        runner.contender.run(requests[0])
    for turn in range(ROUNDS * len(requests)):
        at, first = turn % len(requests), turn % len(runners)
        for place in [*places[first:], *places[:first]]:
            sleep(REST)
            found[place][at].append(runners[place].contender.run(requests[at]))
    return found


def _costs(trials: List[List[Trial]]) -> Costs:
    return np.array([[sum(len(t.tokens) for t in one), sum(t.seconds for t in one)] for one in trials], dtype=float)
