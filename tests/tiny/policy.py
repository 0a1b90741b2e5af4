"""The default policy in numbers: an adaptive budget and the choice beside it, in rounds
of given costs. Test code.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from foreword.budget import AdaptiveBudget, Costs, DraftBudget, RoundResult
from foreword.budget.choice import Choice, Text
from foreword.types import Clock, Draft, Request


@dataclass
class Policy:
    """Decides for the requests of a round whether they draft, and how much."""

    cost: Mapping[int, float]
    """Seconds of a forward by its rows, as measured beforehand."""
    fixed: DraftBudget | None = None
    """A constant number instead."""
    budget: DraftBudget = field(init=False)
    choice: Choice = field(init=False)
    texts: dict[int, Text] = field(default_factory=dict)
    read: dict[int, int] = field(default_factory=dict)
    """Tokens that the drafter has read, by request."""
    overhead: float = 0.0

    def __post_init__(self) -> None:
        self.budget = self.fixed or AdaptiveBudget(self.cost)
        self.choice = Choice(1)
        self.costs = Costs(self.cost)
        if isinstance(self.budget, AdaptiveBudget):
            self.costs = self.budget.costs

    def nodes(self, requests: Sequence[Request]) -> list[int]:
        """Return the draft tokens for each of these requests."""
        others = len(requests) - 1
        if self.fixed is None:
            texts = [self._text(one) for one in requests]
            lag = sum(map(self._lag, requests))
            if self.choice.decide(texts, lambda _: lag) == self.choice.plain:
                return [0] * len(requests)
        return [self.budget.nodes(one, others) for one in requests]

    def _text(self, request: Request) -> Text:
        if request.id not in self.texts:
            self.texts[request.id] = self.choice.begin()
        return self.texts[request.id]

    def _lag(self, request: Request) -> int:
        lag = len(request.tokens) - self.read.get(request.id, 0)
        return lag if lag > 8 else 0

    def trim(self, draft: Draft) -> Draft:
        return self.budget.trim(draft) if draft.nodes else draft

    def learn(
        self,
        requests: Sequence[Request],
        asked: Sequence[int],
        depths: Sequence[int],
        accepted: Sequence[int],
        clock: Clock,
        reading: int = 0,
    ) -> None:
        """Learn from a round, before its tokens are written."""
        size, rows = len(requests), len(requests) + sum(depths)
        if not any(asked):
            if self.fixed is None:
                self.choice.pass_plain()
                if not reading:
                    self.costs.correct(size, clock.score)
                self.overhead = (clock.verify + clock.commit) / size
            return
        lag = sum(map(self._lag, requests))
        plain = self.costs.seconds(size) * clock.score / self.costs.seconds(rows)
        plain += size * self.overhead
        spent = clock.total / plain
        if reading:
            plain = self.costs.seconds(size) + size * self.overhead
            more = self.costs.seconds(rows) - self.costs.seconds(size)
            spent = 1.0 + (clock.propose + more) / plain
        self.budget.on_timing(rows, clock, reading)
        for one, *round_ in zip(requests, asked, depths, accepted, strict=True):
            wanted, depth, kept = round_
            result = RoundResult(wanted, depth, kept, clock.propose, clock.total)
            self.budget.learn(one, result)
            if self.fixed is None:
                self.choice.saw(self._text(one), 0, depth, kept)
            self.read[one.id] = len(one.tokens) + kept + 1
        if self.fixed is None:
            tokens = 1 + sum(accepted) / size
            depth = round(sum(depths) / size)
            self.choice.learn(0, tokens, depth, spent, lag)

    def release(self, request: Request) -> None:
        self.budget.release(request)
        self.texts.pop(request.id, None)
        self.choice.end(request.produced)
