"""CHOOSE: which of several methods, or plain decoding, writes the next rounds, by what
each would gain on the text that is being written.

Knows numbers alone: no models, no drafters and no clock. Times are in rounds of plain
decoding of the same batch, so that a slow hour slows both sides.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass

from foreword.budget.estimates import (
    DEPTHS,
    LOOKED,
    LOOKED_ON_ALL,
    MODELS,
    Agreement,
    Guard,
    OnText,
    Price,
)
from foreword.estimators import OUTLIER, finite

UNPRICED = 4
"""Draft tokens of a method whose rounds were not timed."""
EVERY, IDLE = 4, 16
"""Rounds between decisions, and where plain decoding goes on."""
HORIZON = 64
"""Tokens over which a switch must pay for what the other drafter has to read."""
LEAD = 0.05
"""Share of the time of HORIZON tokens that a switch must save besides."""
RETRY, LONGEST = 16, 512
"""Rounds after which a method that was not used is tried again, since few rounds may
have misjudged it, and the load of the machine changes; each time twice as many.
"""
TRIAL = 3
"""Rounds of such a try; the first one also reads what others wrote."""


@dataclass(slots=True, eq=False)
class Text:
    """What a choice knows of one text."""

    by_method: list[OnText]
    method: int = -1
    """The method in use; -1 before any."""


Sort = tuple[bool, bool]
"""(greedy, plain)."""
Kind = tuple[Sort, int]
"""The sort of a request, and the bits of the number of requests in its rounds."""
Speeds = dict[int, float]
"""By method: tokens in the time of one round of plain decoding."""


class Choice:
    """Which method requests of one kind use: the one that should write the most tokens
    in the time of a plain round, on these texts, followed with hysteresis.

    The acceptance of each method is known on all texts and on this one, from its own
    rounds and from reading what another one wrote: feedback is full, as in HedgeSpec
    (arXiv 2510.20064, section 4). The loss is time, so a method is priced at its best
    length: the most of (1 + tokens accepted) / (rounds that the round takes).
    """

    def __init__(self, methods: int) -> None:
        """`methods`: how many there are besides plain decoding, which is the last."""
        self.plain = methods
        self.agreement = [Agreement() for _ in range(methods)]
        self.prices = [Price() for _ in range(methods)]
        self.guard = Guard()
        self.row = 0.0
        """Rounds of plain decoding that one more row of the target takes."""
        self.length = 0.0
        """Mean tokens of an answer; 0 before any ended."""
        self.current = methods
        self.speeds: Speeds = {}
        """Speeds of the last decision."""
        self._left = 0
        """Rounds until the next decision."""
        self._rounds = 0
        self._used = [0] * methods
        """By method: the last round that used it."""
        self._retry = [RETRY] * methods
        """By method: rounds without it before the next try."""

    def start_from(self, other: Choice) -> None:
        """Begin with what requests of another kind have shown."""
        for mine, known in zip(self.agreement, other.agreement, strict=True):
            mine.recall(known.rates)
        self.length = other.length

    def state(self, method: int) -> list[float]:
        """Return what later processes should know of a method: what its rounds take
        beyond plain ones, at first and by draft token, and its acceptance by depth.
        Empty where it was not used.
        """
        line = self.prices[method].line
        if not line.weight:
            return []
        return [line.start, line.each, *self.agreement[method].rates]

    def recall(self, method: int, state: Sequence[float]) -> None:
        """Begin with the `state` of a method in an earlier process, if it is one."""
        if len(state) != 2 + DEPTHS:
            return
        start, each, *rates = state
        line = self.prices[method].line
        for depth in (1, DEPTHS):
            line.learn(depth, start + each * depth)
        self.prices[method].is_warm = False
        self.agreement[method].recall(rates)

    # ---- texts

    def begin(self) -> Text:
        """Return the record of a new text."""
        self._left = 0
        return Text([OnText(gain=price.gain) for price in self.prices])

    def end(self, tokens: int) -> None:
        """Record the length of an answer that has ended."""
        self.length += 0.1 * (tokens - self.length) if self.length else tokens

    def saw(self, text: Text, method: int, depth: int, accepted: int) -> None:
        """Record a draft of a method on a text: its own, or one that was only read."""
        if not depth:
            return
        agreement = self.agreement[method]
        text.by_method[method].add(depth, accepted, agreement.rates)
        agreement.add(depth, accepted)

    def looked(self, text: Text, method: int, gain: float) -> None:
        """Record what a draft that was looked up should gain."""
        for known, weight in (
            (text.by_method[method], LOOKED),
            (self.prices[method], LOOKED_ON_ALL),
        ):
            known.gain += weight * (gain - known.gain)

    def reconsider(self) -> None:
        """Decide anew in the next round: something was read."""
        self._left = 0

    # ---- predict

    def reached(self, text: Text, method: int) -> Iterator[float]:
        """Yield, by depth, the probability that a draft on this text is accepted so
        far.
        """
        odds = text.by_method[method].odds()
        reached = 1.0
        for rate in self.agreement[method].rates:
            reached *= rate * odds / (1 - rate + rate * odds)
            yield reached

    def expected(self, text: Text, method: int, depth: int) -> float:
        """Return the tokens of a draft of this depth that are expected to be
        accepted.
        """
        total, reached = 0.0, 1.0
        for at, reached in enumerate(self.reached(text, method)):
            if at == depth:
                return total
            total += reached
        return total + reached * (depth - DEPTHS)

    def speed(self, texts: Sequence[Text], method: int) -> float:
        """Return the tokens that a method should write in the time of a plain round, at
        its best length, over plain decoding of the same texts.
        """
        return 1.0 if method == self.plain else self._best(texts, method)[0]

    def nodes(self, text: Text, method: int) -> int:
        """Return the draft tokens with which a method should write this text fastest;
        few before any was timed, so that a dear drafter costs little.
        """
        limit = DEPTHS if self.prices[method].known else UNPRICED
        return min(self._best([text], method)[1], limit)

    def _best(self, texts: Sequence[Text], method: int) -> tuple[float, int]:
        price, share = self.prices[method], self.agreement[method].calibration
        best, length = 0.0, 1
        earned = 0.0
        steps = zip(*(self.reached(text, method) for text in texts), strict=True)
        for depth, reached in enumerate(steps, 1):
            earned += share * sum(reached) / len(texts)
            speed = (1.0 + earned) / price.spent(depth, self.row)
            if speed > best:
                best, length = speed, depth
        return best, length

    # ---- choose

    @property
    def settled(self) -> bool:
        """Whether the method stays as it is in the next round."""
        stopped = self.guard.stops_models and self.current != self.plain
        return self._left > 0 and not stopped

    def decide(
        self,
        texts: Sequence[Text],
        unread: Callable[[int], int],
        out: Collection[int] = (),
    ) -> int:
        """Return the method of the next rounds of these texts, none of `out`: those
        cannot draft now. `unread(method)`: tokens that its drafter has to read first.
        """
        if self.settled and self.current not in out:
            return self.current
        self._left = EVERY
        methods = [one for one in range(self.plain) if one not in out]
        if self.guard.stops_models or not methods:
            self.current = self.plain
            return self.plain
        self.speeds = {one: self.speed(texts, one) for one in methods}
        self.speeds[self.plain] = 1.0
        if self.current not in self.speeds:
            self.current = self.plain
        trial = self._to_try(methods, unread)
        if trial is not None:
            self._left, self.current = TRIAL, trial
            return trial
        self.current = min(self.speeds, key=lambda one: self._rounds_of(one, unread))
        if self.current == self.plain:
            self._left = IDLE
        return self.current

    def _rounds_of(self, method: int, unread: Callable[[int], int]) -> float:
        """Return the rounds that the next tokens take with a method, what its drafter
        has to read first included.
        """
        tokens = min(self.length or HORIZON, HORIZON)
        rounds = tokens / max(self.speeds[method], 1e-3)
        if method != self.current:
            rounds *= 1 + LEAD
        if method != self.plain:
            rounds += self.prices[method].reading * unread(method)
        return rounds

    def _to_try(
        self, methods: Sequence[int], unread: Callable[[int], int]
    ) -> int | None:
        """Return a method that was not used for long, if a try may lose its time."""
        best = max(self.speeds.values())
        for method in methods:
            idle = self._rounds - self._used[method]
            if method == self.current or idle < self._retry[method]:
                continue
            loss = TRIAL * max(1.0 - self.speeds[method] / best, 0.1)
            loss += self.prices[method].reading * unread(method)
            if max(self.guard.lost, 0.0) + loss <= MODELS:
                self._retry[method] = min(2 * self._retry[method], LONGEST)
                return method
        return None

    def gain(self, expected: float, rows: int, texts: int) -> float:
        """Return what a draft that was looked up for one of so many texts gains over
        the method in use, in tokens of a text: `expected` of its `rows` should be
        accepted.
        """
        speed = self.speeds.get(self.current, 1.0)
        return expected - speed * rows * self.row * texts - (speed - 1.0)

    # ---- learn

    def is_turn(self, every: int) -> bool:
        """Whether one round in so many is over."""
        return self._rounds % every == 0

    def pass_plain(self) -> None:
        """Record a round of plain decoding."""
        self._count()
        self.guard.allow()

    def learn(
        self, method: int, tokens: float, depth: int, spent: float, unread: int
    ) -> None:
        """Record a round of a method: `tokens` per text, in the time of `spent` plain
        rounds, the drafter having read `unread` tokens before.
        """
        if not finite(tokens, spent):
            return
        price = self.prices[method]
        if price.known and not unread:
            spent = min(spent, OUTLIER * max(price.spent(depth), 1.0))
        first = not price.is_warm
        price.learn(depth, spent, unread)
        self.guard.charge((0.0 if first else spent) - tokens)
        if not (first or unread):
            self.guard.record(tokens / spent)
        self._used[method] = self._rounds
        self._count()

    def _count(self) -> None:
        self._rounds += 1
        self._left -= 1
