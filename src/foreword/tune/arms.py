"""Chooses a method and a number of draft tokens for a target, a machine and prompts:
predicts every choice on the same answers, then times the best.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from time import perf_counter

import numpy as np

from foreword.api.llm import LLM
from foreword.bench.stats import Interval, speedup
from foreword.budget import AdaptiveBudget, Costs, FixedBudget
from foreword.engine import Engine
from foreword.engine.scheduler import Scheduler
from foreword.errors import InvalidRequest
from foreword.hindsight.playback import emitted, run
from foreword.hindsight.whatif import Outcome, candidates, drafting_seconds, what_if
from foreword.model import measure
from foreword.recording import Recording
from foreword.registry import PLAIN
from foreword.tune.chosen import Arm, Chosen, Confirmation, Limits, Prediction
from foreword.types import SamplingParams
from foreword.types.round import Round
from foreword.verify import rule

NODES = (2, 4, 8, 16)
"""Numbers of draft tokens that are predicted."""
FIRST = 4
"""Prompts after which choices that are far behind are dropped."""
FAR = 0.7
"""Share of the best predicted speed below which a choice is dropped."""
CONFIRMED = 3
"""Methods that are timed."""
BETTER = 1.03
"""Speed over `adaptive` from which a constant number is worth writing down."""
SHARE = 0.6
"""Share of the time for answers and predictions; the rest is for timing."""
Counts = dict[Arm, list[tuple[int, float]]]
"""By choice: tokens and seconds of each prompt."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Search:
    """What is asked for."""

    methods: tuple[str, ...] | None = None
    """None = all that the target can draft with."""
    temperature: float = 0.0
    tokens: int = 64
    """Most tokens of an answer."""
    minutes: float = 3.0
    seed: int = 0


def choose(
    llm: LLM,
    prompts: Sequence[Sequence[int]],
    search: Search,
    progress: Callable[[str], None] = lambda _: None,
) -> Chosen:
    """Predict every choice on the answers to these prompts, time the best, and name the
    fastest.

    Under `match` all choices write the same answers, so each is predicted on all of
    them. Raises InvalidRequest without prompts.
    """
    if not prompts:
        raise InvalidRequest("cannot choose a method: there are no prompts. Give some")
    started = perf_counter()
    predicted = _Predictions(llm, search)
    for number, prompt in enumerate(prompts):
        progress(f"{number} of {len(prompts)}: predicting")
        predicted.add(prompt, number)
        spent = perf_counter() - started
        if number + 1 >= FIRST and spent > SHARE * 60 * search.minutes:
            break
    predictions = predicted.result()
    best = _finalists(predictions)
    timed = _confirmed(llm, prompts[: predicted.seen], best, search, progress)
    confirmations = tuple(
        Confirmation(arm, _speed_of(arm, predictions), interval)
        for arm, interval in sorted(timed.items(), key=lambda one: -one[1].mid)
    )
    chosen = _best(confirmations)
    return Chosen(
        chosen,
        predicted.seen,
        search.temperature,
        predictions,
        confirmations,
        predicted.left_out,
        predicted.costs,
        tuple(_why(chosen, predictions, confirmations)),
    )


class _Predictions:
    """Sums of predicted tokens and seconds, by choice and prompt."""

    def __init__(self, llm: LLM, search: Search) -> None:
        self._llm, self._search = llm, search
        self._methods = list(search.methods or candidates(llm.session))
        self._nodes: dict[str, tuple[int, ...]] = {}
        self._nodes |= dict.fromkeys(self._methods, NODES)
        self._counts: Counts = {}
        self._outcomes: dict[Arm, list[Outcome]] = {}
        self._paths: dict[Arm, list[int]] = {}
        """Accepted draft tokens of each round."""
        self.costs = measure(llm.session.target)
        self.left_out: dict[str, str] = {}
        self.seen = 0

    def add(self, prompt: Sequence[int], number: int) -> None:
        """Answer a prompt by plain decoding, and predict every choice on it."""
        recording = _recorded(self._llm, prompt, self._search, number)
        self.seen += 1
        for method, nodes in list(self._nodes.items()):
            found = what_if(self._llm, recording, [method], nodes)
            for one in found.left_out:
                self.left_out[method] = one.why
                del self._nodes[method]
            for one in found.outcomes:
                self._keep(one, number)
        if self.seen == FIRST:
            self._drop()

    def _keep(self, one: Outcome, number: int) -> None:
        arm = Arm(one.method, one.nodes)
        rows = self._counts.setdefault(arm, [])
        if len(rows) <= number:  # plain decoding comes with every method
            rows.append((one.tokens, one.seconds))
            self._outcomes.setdefault(arm, []).append(replace(one, rounds=()))
            lengths = [len(played.accepted) for played in one.rounds]
            self._paths.setdefault(arm, []).extend(lengths)

    def _drop(self) -> None:
        """Drop choices that are far behind the best."""
        speeds = {arm: self._over_plain(arm).mid for arm in self._counts}
        enough = FAR * max(speeds.values())
        for method, nodes in list(self._nodes.items()):
            kept = tuple(one for one in nodes if speeds[Arm(method, one)] >= enough)
            self._nodes[method] = kept
            if not kept:
                del self._nodes[method]

    def _over_plain(self, arm: Arm) -> Interval:
        own = self._counts[arm]
        plain = self._counts[Arm(PLAIN, 0)][: len(own)]
        return speedup(np.array(own, float), np.array(plain, float))

    def result(self) -> tuple[Prediction, ...]:
        """Return the predictions, the fastest first."""
        found = [
            self._prediction(arm, outcomes) for arm, outcomes in self._outcomes.items()
        ]
        return tuple(sorted(found, key=lambda one: -one.over_plain.mid))

    def _prediction(self, arm: Arm, outcomes: Sequence[Outcome]) -> Prediction:
        drafted = sum(one.drafted for one in outcomes)
        seconds = sum(one.seconds for one in outcomes)
        drafting = sum(one.drafting for one in outcomes)
        speed = self._over_plain(arm)
        passes = sum(one.passes for one in outcomes)
        per_pass = sum(one.tokens for one in outcomes) / passes
        nodes, costs = arm.nodes or 0, Costs(self.costs)
        rows = passes * max(costs.seconds(nodes + 1) - costs.seconds(1), 0.0)
        limits = Limits(
            speed.mid * seconds / (seconds - drafting),
            speed.mid * seconds / max(seconds - rows, passes * costs.seconds(1)),
            speed.mid * max((nodes + 1) / per_pass, 1.0),
        )
        paths = self._paths[arm]
        reached = (
            sum(length >= depth for length in paths) / len(paths)
            for depth in range(1, nodes + 1)
        )
        return Prediction(
            arm,
            speed,
            per_pass,
            sum(one.accepted for one in outcomes) / drafted if drafted else 0.0,
            drafting / seconds,
            tuple(reached),
            limits,
        )


def _recorded(
    llm: LLM, prompt: Sequence[int], search: Search, number: int
) -> Recording:
    """Return the recorded answer to a prompt, by plain decoding."""
    params = _params(search, number, method=PLAIN)
    answer = llm.generate([list(prompt)], params)[0]
    return Recording.of(llm, params, answer)


def _params(search: Search, number: int, method: str) -> SamplingParams:
    return SamplingParams(
        temperature=search.temperature,
        seed=search.seed + number,
        max_tokens=search.tokens,
        method=method,
        trace=True,
    )


class _Entry:
    """A choice that is timed: an engine with a drafter that has seen no answer yet."""

    def __init__(self, llm: LLM, arm: Arm, search: Search) -> None:
        self._session = llm.session
        self._arm, self._search = arm, search
        target = llm.session.target
        params = SamplingParams(method=arm.method)
        budget = (
            AdaptiveBudget.from_measure(partial(measure, target))
            if arm.nodes is None
            else FixedBudget(arm.nodes)
        )
        drafter = llm.session.drafter(params, fresh=True)
        scheduler = Scheduler(slots=1)
        self._engine = Engine(target, drafter, rule("match"), budget, scheduler)

    def answer(self, prompt: Sequence[int], number: int) -> tuple[int, float]:
        """Answer a prompt; return its tokens and seconds."""
        params = _params(self._search, number, self._arm.method)
        (sequence,) = self._session.prepare(list(prompt), params)
        rounds = run(self._engine, self._session, sequence)
        return len(emitted(rounds)), _decoding_seconds(rounds)


def _confirmed(
    llm: LLM,
    prompts: Sequence[Sequence[int]],
    arms: Sequence[Arm],
    search: Search,
    progress: Callable[[str], None],
) -> dict[Arm, Interval]:
    """Time these choices, the adaptive budget of the best, and plain decoding, in turn
    on each prompt; return their speeds over plain decoding.
    """
    adaptive = [Arm(arms[0].method, None)] if arms else []
    plain = Arm(PLAIN, 0)
    arms = [plain, *arms, *adaptive]
    entries = {arm: _Entry(llm, arm, search) for arm in arms}
    counts: Counts = {arm: [] for arm in arms}
    *timed, last = prompts if len(prompts) > 1 else [*prompts, *prompts]
    for entry in entries.values():
        # warms caches, and gives the adaptive budget its costs
        entry.answer(last, len(timed))
    ends = perf_counter() + (1 - SHARE) * 60 * search.minutes
    for number, prompt in enumerate(timed):
        progress(f"{number} of {len(timed)}: timing the best")
        first = number % len(arms)
        for arm in [*arms[first:], *arms[:first]]:
            counts[arm].append(entries[arm].answer(prompt, number))
        if number + 1 >= FIRST and perf_counter() > ends:
            break
    base = np.array(counts[plain], float)
    return {arm: speedup(np.array(own, float), base) for arm, own in counts.items()}


def _decoding_seconds(rounds: Sequence[Round]) -> float:
    """Return the measured seconds of rounds, without the reading of the prompt by the
    drafter.
    """
    rest = sum(one.score_ms + one.verify_ms + one.commit_ms for one in rounds)
    return rest / 1000 + sum(drafting_seconds(rounds))


def _finalists(predictions: Sequence[Prediction]) -> list[Arm]:
    """Return the best number of draft tokens of each of the best methods."""
    best: dict[str, Arm] = {}
    for one in predictions:
        if one.arm.method != PLAIN:
            best.setdefault(one.arm.method, one.arm)
    return list(best.values())[:CONFIRMED]


def _speed_of(arm: Arm, predictions: Sequence[Prediction]) -> float | None:
    found = (one.over_plain.mid for one in predictions if one.arm == arm)
    return next(found, None)


def _best(confirmations: Sequence[Confirmation]) -> Arm:
    """Return the fastest choice; the adaptive budget, which follows the text and the
    load, where a constant number is hardly faster.
    """
    fastest = confirmations[0]
    for one in confirmations:
        near = one.measured.mid * BETTER >= fastest.measured.mid
        if one.arm.nodes is None and near:
            return one.arm
    return fastest.arm


def _why(
    chosen: Arm,
    predictions: Sequence[Prediction],
    confirmations: Sequence[Confirmation],
) -> list[str]:
    """Return why this choice, in sentences."""
    own = next(one for one in confirmations if one.arm == chosen)
    if chosen.method == PLAIN:
        best = predictions[0]
        reason = (
            f"Plain decoding is fastest: the best draft, {best.arm.method} with "
            f"{best.arm.nodes} tokens, was predicted at {best.over_plain.mid:.2f} "
            "times plain and did not reach it."
        )
        return [reason]
    like = [one for one in predictions if one.arm.method == chosen.method]
    about = like[0]
    speed = own.measured
    said = []
    said.append(
        f"{chosen.method} is {speed.mid:.2f} times as fast as plain decoding "
        f"({speed.low:.2f} to {speed.high:.2f} over the prompts)."
    )
    said.append(
        f"It writes {about.tokens_per_pass:.1f} tokens a pass, {about.accepted:.0%} of "
        f"its draft tokens are accepted, and drafting takes {about.drafting:.0%} of "
        "the time."
    )
    others = [one for one in predictions if one.arm.method != chosen.method]
    if others and others[0].arm.method != PLAIN:
        other = others[0]
        said.append(
            f"Next is {other.arm.method}, predicted at {other.over_plain.mid:.2f} "
            f"times plain, with {other.tokens_per_pass:.1f} tokens a pass and "
            f"{other.drafting:.0%} of the time in drafting."
        )
    return said
