"""Real rounds of a choice: engines that are timed, and what a round costs."""

from collections.abc import Sequence
from dataclasses import dataclass
from math import ceil
from statistics import fmean, median

from foreword.api.session import Session
from foreword.budget import AdaptiveBudget, FixedBudget
from foreword.engine import Engine
from foreword.engine.scheduler import Scheduler
from foreword.hindsight.playback import emitted, run
from foreword.hindsight.whatif import Outcome, drafting_seconds
from foreword.model import measure
from foreword.registry import DEFAULT_RULE, PLAIN
from foreword.types import SamplingParams
from foreword.types.round import Round
from foreword.verify import rule
from foreword_lab.tune.chosen import Arm

ROUNDS = 8
"""Rounds of a choice that are timed on a prompt, and of plain decoding beside them."""

KEPT = 0.9
"""Share of the timed rounds, the fastest, whose mean counts. A lower quantile would not
do: beside other programs a round that drafts by a model takes either 1.8 or 3 times as
long as a plain one, and both happen.
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Search:
    """What is asked for."""

    methods: tuple[str, ...] | None = None
    """None = all that the target can draft with."""
    rules: tuple[str, ...] = (DEFAULT_RULE,)
    temperature: float = 0.0
    tokens: int = 64
    """Most tokens of an answer."""
    minutes: float = 3.0
    seed: int = 0


def params_of(search: Search, number: int, method: str) -> SamplingParams:
    """Return the parameters of prompt `number`."""
    return SamplingParams(
        temperature=search.temperature,
        seed=search.seed + number,
        max_tokens=search.tokens,
        method=method,
        trace=True,
    )


class TimedArm:
    """A choice that is timed: an engine with a drafter that has seen no answer yet."""

    def __init__(self, session: Session, arm: Arm, search: Search) -> None:
        self._session = session
        self._arm, self._search = arm, search
        target = session.target
        params = SamplingParams(method=arm.method)
        budget = (
            AdaptiveBudget(measure(target))
            if arm.nodes is None
            else FixedBudget(arm.nodes)
        )
        drafter = session.drafter(params, fresh=True)
        scheduler = Scheduler(slots=1)
        self._engine = Engine(target, drafter, rule(arm.rule), budget, scheduler)

    def answer(self, prompt: Sequence[int], number: int) -> tuple[int, float]:
        """Answer a prompt; return its tokens and seconds."""
        rounds = self.rounds(prompt, number)
        return len(emitted(rounds)), sum(seconds_of(rounds))

    def rounds(
        self, prompt: Sequence[int], number: int, most: int | None = None
    ) -> list[Round]:
        """Return the first rounds of the answer to a prompt, or all."""
        params = params_of(self._search, number, self._arm.method)
        (request,) = self._session.prepare(list(prompt), params)
        return run(self._engine, self._session, request, most)


@dataclass(frozen=True, slots=True)
class Spent:
    """Predicted seconds of a choice's rounds on one answer, by whether they drafted."""

    tokens: int
    rounds: dict[bool, int]
    """Number of rounds."""
    seconds: dict[bool, float]
    """From the cost table, for a kind of round that was not timed."""

    @classmethod
    def of(cls, outcome: Outcome) -> "Spent":
        """Sum up the rounds of a replay."""
        count = {True: 0, False: 0}
        seconds = {True: 0.0, False: 0.0}
        rounds = outcome.rounds
        refused = outcome.refused or (0,) * len(rounds)
        times = outcome.by_round
        for round_, more, took in zip(rounds, refused, times, strict=True):
            kind = bool(round_.draft or more)
            count[kind] += 1
            seconds[kind] += took
        return cls(outcome.tokens, count, seconds)


class RoundPrices:
    """Costs of real rounds of a choice, in rounds of plain decoding beside them.

    A round costs more than a forward from the cost table and drafting while the target
    rests: it finds colder caches, verifies more rows, and moves keys and values. The
    rounds of plain decoding are timed in the same moment, and the slowest are left out
    of both, so that other programs on the machine matter little.
    """

    def __init__(self, session: Session, search: Search) -> None:
        self._session = session
        self._search = search
        self._plain = TimedArm(session, Arm(PLAIN, 0), search)
        self._beside: dict[Arm, list[float]] = {}
        """Seconds of the rounds of plain decoding beside a choice."""
        self._timed: dict[tuple[Arm, bool], list[float]] = {}
        """Seconds of its rounds, by whether they drafted."""
        self._shares: dict[Arm, list[float]] = {}
        """Share of drafting in each round that drafted."""

    def time(self, arm: Arm, prompt: Sequence[int], number: int) -> None:
        """Time some rounds of a choice, and as many of plain decoding before them."""
        plain = seconds_of(self._plain.rounds(prompt, number, ROUNDS))
        self._beside.setdefault(arm, []).extend(plain[1:] or plain)
        timed = TimedArm(self._session, arm, self._search)
        rounds = timed.rounds(prompt, number, ROUNDS)
        took = seconds_of(rounds)
        # the first reads the prompt as well
        for round_, seconds in zip(rounds[1:], took[1:], strict=True):
            kind = (arm, bool(round_.draft))
            self._timed.setdefault(kind, []).append(seconds)
            if round_.draft:
                share = round_.propose_ms / 1000 / seconds
                self._shares.setdefault(arm, []).append(share)

    def units(self, arm: Arm, spent: Spent, plain: float) -> float:
        """Return the cost of an answer in rounds of plain decoding.

        `plain`: predicted seconds of such a round, for kinds that were not timed.
        """
        total = 0.0
        for drafted, count in spent.rounds.items():
            timed = self._timed.get((arm, drafted))
            if timed is None:
                total += spent.seconds[drafted] / plain
            else:
                unit = typical(self._beside[arm])
                # no round is cheaper than one of plain decoding
                total += count * max(typical(timed) / unit, 1.0)
        return total

    def drafting(self, arm: Arm) -> float | None:
        """Return the share of drafting in a round that drafts; None before any."""
        shares = self._shares.get(arm)
        return median(shares) if shares else None


def typical(seconds: Sequence[float]) -> float:
    """Return the mean without the slowest rounds, which other programs held up."""
    count = ceil(KEPT * len(seconds))
    return fmean(sorted(seconds)[:count])


def seconds_of(rounds: Sequence[Round]) -> list[float]:
    """Return the measured seconds of each round, without the drafter's prompt."""
    rest = [one.score_ms + one.verify_ms + one.commit_ms for one in rounds]
    drafting = drafting_seconds(rounds)
    return [one / 1000 + own for one, own in zip(rest, drafting, strict=True)]
