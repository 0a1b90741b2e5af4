"""The default policy in numbers: an adaptive budget and its choice, at given costs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from foreword.budget import AdaptiveBudget, Costs, DraftBudget, RoundResult
from foreword.budget.choice import Choice, Text
from foreword.engine.round_prices import RoundPrices, RoundRows
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
    prices: RoundPrices = field(init=False)
    texts: dict[int, Text] = field(default_factory=dict)
    read: dict[int, int] = field(default_factory=dict)
    """Tokens that the drafter has read, by request."""

    def __post_init__(self) -> None:
        self.budget = self.fixed or AdaptiveBudget(self.cost)
        self.choice = Choice(1)
        costs = Costs(self.cost)
        if isinstance(self.budget, AdaptiveBudget):
            costs = self.budget.costs
        self.prices = RoundPrices(costs)

    @property
    def costs(self) -> Costs:
        """Seconds of a forward, as they are known now."""
        return self.prices.costs

    def nodes(self, requests: Sequence[Request]) -> list[int]:
        """Return the draft tokens for each of these requests."""
        size = len(requests)
        if isinstance(self.budget, AdaptiveBudget):
            texts = [self._text(one) for one in requests]
            lag = sum(map(self._lag, requests))
            self.choice.row = self.prices.row(size)
            number = self.choice.decide(texts, lambda _: lag)
            for text in texts:
                text.method = number
            if number == self.choice.plain:
                return [0] * size
            self.budget.terms = self.prices.terms(self.choice, 0, size)
        return [self.budget.nodes(one, size - 1) for one in requests]

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
        size, nodes = len(requests), sum(depths)
        if not any(asked):
            self.choice.pass_plain()
            if not reading:
                self.prices.learn_plain(size, clock, self.choice.streak)
            return
        lag = sum(map(self._lag, requests))
        rows = RoundRows(size, nodes, reading)
        self.prices.learn(clock, rows, size)
        spent, proposed = self.prices.spent(clock, rows, size, nodes)
        for one, *round_ in zip(requests, asked, depths, accepted, strict=True):
            wanted, depth, kept = round_
            result = RoundResult(wanted, depth, kept, clock, reading > 0)
            self.budget.learn(one, result)
            self.choice.saw(self._text(one), 0, depth, kept)
            self.read[one.id] = len(one.tokens) + kept + 1
        tokens = 1 + sum(accepted) / size
        self.choice.learn(0, tokens, round(nodes / size), spent, lag)
        if isinstance(self.budget, AdaptiveBudget) and not lag:
            levels = self.budget.levels
            levels = nodes if levels is None else levels
            self.choice.prices[0].propose(levels, proposed)

    def release(self, request: Request) -> None:
        self.budget.release(request)
        self.texts.pop(request.id, None)
        self.choice.end(request.produced)
