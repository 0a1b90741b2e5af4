"""Chooses a method and a number of draft tokens for a target, a machine and prompts:
predicts every choice on the same answers, then times the best.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import pairwise, product
from time import perf_counter

import numpy as np

from foreword.api.llm import LLM
from foreword.api.session import Session
from foreword.budget import AdaptiveBudget, Costs
from foreword.budget.estimates import DEPTHS
from foreword.budget.kept import kind_name
from foreword.engine.speculator import kept_states
from foreword.errors import InvalidRequest
from foreword.hindsight.whatif import Outcome, candidates, what_if
from foreword.model import measure
from foreword.recording import Recording
from foreword.registry import DEFAULT_RULE, PLAIN
from foreword.types import SamplingParams
from foreword_lab.bench.stats import Interval, speedup
from foreword_lab.tune.chosen import (
    Arm,
    Chosen,
    Confirmation,
    Limits,
    Prediction,
)
from foreword_lab.tune.timed import (
    RoundPrices,
    Search,
    Spent,
    TimedArm,
    params_of,
)

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


def choose(
    llm: LLM,
    prompts: Sequence[Sequence[int]],
    search: Search,
    progress: Callable[[str], None] = lambda _: None,
) -> Chosen:
    """Predict every choice on the answers to these prompts, time the best, and name the
    fastest.

    Under `match` all choices write the same answers, so each is predicted on all of
    them; under another rule these answers are as likely as its own. Raises
    InvalidRequest without prompts.
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
        for arm, interval in sorted(timed.items(), key=lambda pair: -pair[1].mid)
    )
    best_arm = _best(confirmations)
    chosen = Chosen(
        best_arm,
        predicted.seen,
        search.temperature,
        predictions,
        confirmations,
        predicted.left_out,
        predicted.costs,
        tuple(_why(best_arm, predictions, confirmations)),
    )
    keep_speeds(llm.session, chosen)
    return chosen


class _Predictions:
    """Sums of predicted tokens and seconds, by choice and prompt."""

    def __init__(self, llm: LLM, search: Search) -> None:
        self._llm = llm
        self._search = search
        methods = search.methods or candidates(llm.session)
        pairs = list(product(methods, search.rules))
        self._nodes: dict[tuple[str, str], tuple[int, ...]] = {}
        """By method and rule."""
        self._nodes |= dict.fromkeys(pairs, NODES)
        self._spent: dict[Arm, list[Spent]] = {}
        self._outcomes: dict[Arm, list[Outcome]] = {}
        self._paths: dict[Arm, list[int]] = {}
        """Accepted draft tokens of each round."""
        self._prices = RoundPrices(llm.session, search)
        self.costs = measure(llm.session.target)
        self.left_out: dict[str, str] = {}
        self.seen = 0

    def add(self, prompt: Sequence[int], number: int) -> None:
        """Answer a prompt by plain decoding, and predict every choice on it."""
        recording = _recorded(self._llm, prompt, self._search, number)
        self.seen += 1
        for (method, rule), nodes in list(self._nodes.items()):
            result = what_if(self._llm, recording, [method], nodes, rules=[rule])
            for exclusion in result.left_out:
                name = method if rule == DEFAULT_RULE else f"{method}, {rule}"
                self.left_out[name] = exclusion.why
                del self._nodes[method, rule]
            for outcome in result.outcomes:
                self._keep(outcome, number)
        for (method, rule), nodes in self._nodes.items():
            for count in nodes:
                self._prices.time(Arm(method, count, rule), prompt, number)
        if self.seen == FIRST:
            self._drop()

    def _keep(self, outcome: Outcome, number: int) -> None:
        arm = Arm(outcome.method, outcome.nodes, outcome.rule)
        spent = self._spent.setdefault(arm, [])
        if len(spent) <= number:  # plain decoding comes with every method
            spent.append(Spent.of(outcome))
            light = replace(outcome, rounds=(), refused=(), by_round=())
            self._outcomes.setdefault(arm, []).append(light)
            lengths = [len(played.accepted) for played in outcome.rounds]
            self._paths.setdefault(arm, []).extend(lengths)

    def _drop(self) -> None:
        """Drop choices that are far behind the best."""
        speeds = {arm: self._over_plain(arm).mid for arm in self._spent}
        enough = FAR * max(speeds.values())
        for pair, nodes in list(self._nodes.items()):
            method, rule = pair
            self._nodes[pair] = tuple(
                one for one in nodes if speeds[Arm(method, one, rule)] >= enough
            )
            if not self._nodes[pair]:
                del self._nodes[pair]

    def _costs(self, arm: Arm) -> list[float]:
        """Return the cost of each answer, in rounds of plain decoding."""
        if arm.method == PLAIN:
            return [float(one.tokens) for one in self._spent[arm]]
        unit = self._plain_seconds
        return [self._prices.units(arm, one, unit) for one in self._spent[arm]]

    @property
    def _plain_seconds(self) -> float:
        """Predicted seconds of a round of plain decoding."""
        plain = self._outcomes[Arm(PLAIN, 0)]
        passes = sum(one.passes for one in plain)
        return sum(one.seconds for one in plain) / passes

    def _over_plain(self, arm: Arm) -> Interval:
        tokens = [one.tokens for one in self._spent[arm]]
        rows = np.array([tokens, self._costs(arm)], float)
        plain = np.array([tokens, tokens], float)
        return speedup(rows.T, plain.T)

    def result(self) -> tuple[Prediction, ...]:
        """Return the predictions, the fastest first."""
        outcomes = self._outcomes.items()
        rows = [self._prediction(arm, own) for arm, own in outcomes]
        return tuple(sorted(rows, key=lambda row: -row.over_plain.mid))

    def _drafting(self, arm: Arm, cost: float) -> float:
        """Return the share of drafting in the cost of all answers."""
        share = self._prices.drafting(arm)
        if share is None:
            outcomes = self._outcomes[arm]
            seconds = sum(one.seconds for one in outcomes)
            return sum(one.drafting for one in outcomes) / seconds
        unit = self._plain_seconds
        rest = 0.0
        for spent in self._spent[arm]:
            idle = replace(spent, rounds={False: spent.rounds[False]})
            rest += self._prices.units(arm, idle, unit)
        return share * (1 - rest / cost)

    def _prediction(self, arm: Arm, outcomes: Sequence[Outcome]) -> Prediction:
        drafted = sum(one.drafted for one in outcomes)
        cost = sum(self._costs(arm))
        drafting = self._drafting(arm, cost)
        speed = self._over_plain(arm)
        passes = sum(one.passes for one in outcomes)
        per_pass = sum(one.tokens for one in outcomes) / passes
        nodes = arm.nodes or 0
        costs = Costs(self.costs)
        step, unit = costs.seconds(1), self._plain_seconds
        rows = passes * max(costs.seconds(nodes + 1) - step, 0.0) / unit
        least = min(passes * step / unit, cost)
        limits = Limits(
            speed.mid / (1 - drafting),
            speed.mid * cost / max(cost - rows, least),
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
            drafting,
            tuple(reached),
            limits,
        )


def _recorded(
    llm: LLM, prompt: Sequence[int], search: Search, number: int
) -> Recording:
    """Return the recorded answer to a prompt, by plain decoding."""
    params = params_of(search, number, method=PLAIN)
    answer = llm.generate([list(prompt)], params)[0]
    return Recording.of(llm, params, answer)


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
    adaptive = [replace(arms[0], nodes=None)] if arms else []
    plain = Arm(PLAIN, 0)
    arms = [plain, *arms, *adaptive]
    entries = {arm: TimedArm(llm.session, arm, search) for arm in arms}
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


def _finalists(predictions: Sequence[Prediction]) -> list[Arm]:
    """Return the best number of draft tokens of each of the best methods and rules."""
    best: dict[tuple[str, str], Arm] = {}
    for row in predictions:
        if row.arm.method != PLAIN:
            best.setdefault((row.arm.method, row.arm.rule), row.arm)
    return list(best.values())[:CONFIRMED]


def _speed_of(arm: Arm, predictions: Sequence[Prediction]) -> float | None:
    matches = (one.over_plain.mid for one in predictions if one.arm == arm)
    return next(matches, None)


def _best(confirmations: Sequence[Confirmation]) -> Arm:
    """Return the fastest choice; the adaptive budget, which follows the text and the
    load, where a constant number is hardly faster.
    """
    fastest = confirmations[0]
    for row in confirmations:
        near = row.measured.mid * BETTER >= fastest.measured.mid
        if row.arm.nodes is None and near:
            return row.arm
    return fastest.arm


def _alike(arm: Arm, other: Arm) -> bool:
    return (arm.method, arm.rule) == (other.method, other.rule)


def _why(
    chosen: Arm,
    predictions: Sequence[Prediction],
    confirmations: Sequence[Confirmation],
) -> list[str]:
    """Return why this choice, in sentences."""
    result = next(one for one in confirmations if one.arm == chosen)
    if chosen.method == PLAIN:
        best = predictions[0]
        reason = (
            f"Plain decoding is fastest: the best draft, {best.arm.method} with "
            f"{best.arm.nodes} tokens, was predicted at {best.over_plain.mid:.2f} "
            "times plain and did not reach it."
        )
        return [reason]
    like = [one for one in predictions if _alike(one.arm, chosen)]
    about = like[0]
    speed = result.measured
    said = []
    said.append(
        f"{chosen.name} is {speed.mid:.2f} times as fast as plain decoding "
        f"({speed.low:.2f} to {speed.high:.2f} over the prompts)."
    )
    said.append(
        f"It writes {about.tokens_per_pass:.1f} tokens a pass, {about.accepted:.0%} of "
        f"its draft tokens are accepted, and drafting takes {about.drafting:.0%} of "
        "the time."
    )
    others = [one for one in predictions if not _alike(one.arm, chosen)]
    if others and others[0].arm.method != PLAIN:
        other = others[0]
        said.append(
            f"Next is {other.arm.name}, predicted at {other.over_plain.mid:.2f} "
            f"times plain, with {other.tokens_per_pass:.1f} tokens a pass and "
            f"{other.drafting:.0%} of the time in drafting."
        )
    return said


def keep_speeds(session: Session, chosen: Chosen) -> None:
    """Keep what was measured or predicted by method, for requests sampled alike."""
    target = session.target
    store = kept_states(target)
    params = SamplingParams(temperature=chosen.temperature)
    sort = params.greedy, params.plain
    kind = kind_name(DEFAULT_RULE, AdaptiveBudget.__name__, sort, bits=1)
    best = speeds(chosen)
    for row in chosen.predictions:
        method = row.arm.method
        if method in best and row.arm.rule == DEFAULT_RULE:
            state = _state(row, best.pop(method))
            store.record(kind, session.label(method), state, chosen.prompts)


def _state(row: Prediction, speed: float) -> list[float]:
    """Return what a choice should know of a method (`Choice.state`): a round with so
    many draft tokens takes what it must for this speed.
    """
    spent = row.tokens_per_pass / speed
    reached = [1.0, *row.by_depth]
    rates = [
        after / before if before else 0.0 for before, after in pairwise(reached)
    ] or [0.0]
    rates += [rates[-1]] * (DEPTHS - len(rates))
    return [0.0, max(spent - 1.0, 0.0) / max(len(row.by_depth), 1), *rates[:DEPTHS]]


def speeds(chosen: Chosen) -> dict[str, float]:
    """Return the best speed over plain decoding of each method under the default rule:
    measured where it was timed.
    """
    best: dict[str, float] = {}
    timed = {one.arm.method for one in chosen.confirmations}
    for row in chosen.predictions:
        if row.arm.method not in timed and row.arm.rule == DEFAULT_RULE:
            best.setdefault(row.arm.method, row.over_plain.mid)
    for row in chosen.confirmations:
        if row.arm.method != PLAIN and row.arm.rule == DEFAULT_RULE:
            speed = row.measured.mid
            best[row.arm.method] = max(best.get(row.arm.method, 0.0), speed)
    return best
