"""CHOOSE: which of several methods, or plain decoding, writes the next rounds, by what
each would gain on the text that is being written.

Knows numbers alone: no models, no drafters and no clock. Times are in rounds of plain
decoding of the same batch, so that a slow hour slows both sides.
"""

from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass

from foreword.budget.estimates import (
    COPIED,
    DEPTHS,
    FIRST,
    FIRST_GAIN,
    LOOKED,
    LOOKED_ON_ALL,
    MODELS,
    RECALLED,
    SHARE,
    Agreement,
    Guard,
    OnText,
    Price,
)
from foreword.estimators import finite

UNPRICED = 4
"""Draft tokens of a method whose rounds were not timed."""
EVERY, IDLE = 4, 16
"""Rounds between decisions, and where plain decoding goes on."""
HORIZON = 64
"""Tokens over which a switch must pay for what the other drafter has to read."""
LEAD = 0.05
"""Share of the time of HORIZON tokens that a switch must save besides."""
HOPE = 0.25
"""Share of its speed by which a method may be faster on a new text, if it is known from
one other: texts differ so much. It falls with the root of their number, and grows again
while the method is not used.
"""
FADES, FEWEST = 0.8, 0.01
"""Weight of older texts in that number, per text, and its least: a method that took
three times as long is tried once in twenty texts, for the machine may have been busy.
"""
LONG = 256
"""Rounds of plain decoding after which a text counts as new."""
TRIAL = 3
"""Rounds of plain decoding that time it; the first finds the draft in the caches."""


@dataclass(slots=True, eq=False)
class Text:
    """What a choice knows of one text."""

    by_method: list[OnText]
    gain: float
    """Tokens that drafts which are looked up gain in a round over the method in use."""
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

    def __init__(self, methods: int, lookups: Collection[int] = ()) -> None:
        """`methods`: how many there are besides plain decoding, which is the last;
        `lookups`: the ones that look drafts up.
        """
        self.plain = methods
        self.agreement = [
            Agreement(COPIED if method in lookups else FIRST)
            for method in range(methods)
        ]
        self.prices = [Price() for _ in range(methods)]
        self.gained = FIRST_GAIN
        """The same as `Text.gain`, on all texts."""
        self.guard = Guard()
        self.row = 0.0
        """Rounds of plain decoding that one more row of the target takes."""
        self.length = 0.0
        """Mean tokens of an answer; 0 before any ended."""
        self.current = methods
        self.speeds: Speeds = {}
        """Speeds of the last decision."""
        self.streak = 0
        """Rounds of plain decoding since the last other one."""
        self._saved = 0.0
        """Rounds that may be lost by timing plain decoding."""
        self._timing = 0
        """Rounds that are still plain for that."""
        self._left = 0
        """Rounds until the next decision."""
        self._texts = [0.0] * methods
        """By method: texts that it began; old ones count less."""

    def start_from(self, other: "Choice") -> None:
        """Begin with what requests of another kind have shown."""
        for mine, known in zip(self.agreement, other.agreement, strict=True):
            mine.recall(known.rates)
        self.length = other.length
        self.gained = other.gained

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
        self._texts[method] = RECALLED

    # ---- texts

    def begin(self) -> Text:
        """Return the record of a new text."""
        self._left = self._timing = 0
        for method, seen in enumerate(self._texts):
            self._texts[method] = FADES * seen
        return Text([OnText() for _ in self.prices], self.gained)

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

    def looked(self, text: Text, gain: float) -> None:
        """Record what the best draft looked up should gain; 0 if there was none."""
        text.gain += LOOKED * (gain - text.gain)
        self.gained += LOOKED_ON_ALL * (gain - self.gained)

    def reconsider(self) -> None:
        """Decide anew in the next round: something was read."""
        self._left = 0

    # ---- predict

    def reached(self, text: Text, method: int) -> Iterator[float]:
        """Yield, by depth, the probability that a draft is accepted so far."""
        odds = text.by_method[method].odds()
        reached = 1.0
        for rate in self.agreement[method].rates:
            reached *= rate * odds / (1 - rate + rate * odds)
            yield reached

    def expected(self, text: Text, method: int, depth: int) -> float:
        """Return the tokens of a draft of this depth expected to be accepted."""
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
        return self._left > 0 and not (self._timing or stopped)

    @property
    def stays_plain(self) -> bool:
        """Whether the next round, after this plain one, is plain as well."""
        return self._timing > 0 or (self.current == self.plain and self._left > 1)

    def decide(
        self,
        texts: Sequence[Text],
        unread: Callable[[int], int],
        out: Collection[int] = (),
    ) -> int:
        """Return the method of the next rounds of these texts, none of `out`: those
        cannot draft now. `unread(method)`: tokens that its drafter has to read first.
        """
        if self._timing:
            self._timing -= 1
            return self.plain
        if self.settled and self.current not in out:
            return self.current
        self._left = EVERY
        methods = [one for one in range(self.plain) if one not in out]
        if self.guard.stops_models or not methods:
            self.current, self.speeds = self.plain, {self.plain: 1.0}
            return self.plain
        self.speeds = {one: self.speed(texts, one) for one in methods}
        self.speeds[self.plain] = 1.0
        if self.current not in self.speeds:
            self.current = self.plain
        rounds = {
            method: self._rounds_of(method, texts, unread) for method in self.speeds
        }
        self.current = min(rounds, key=rounds.__getitem__)
        if self.current == self.plain:
            self._left = IDLE
        elif self._is_anew(texts):
            self._texts[self.current] += 1
        elif self._times_plain():
            self._timing = TRIAL
        return self.current

    def _times_plain(self) -> bool:
        """Whether plain decoding is timed now: where drafts are used all the time,
        nothing else says how fast it is. It may lose SHARE of the rounds.
        """
        speed = max(self.speeds[self.current], 1.0)
        loss = TRIAL * (1.0 - 1.0 / speed)
        if self._saved < max(loss, TRIAL * SHARE):
            return False
        self._saved -= loss
        return True

    def _rounds_of(
        self, method: int, texts: Sequence[Text], unread: Callable[[int], int]
    ) -> float:
        """Return the rounds of the next tokens with a method, its reading included."""
        tokens = min(self.length or HORIZON, HORIZON)
        speed = self.speeds[method]
        if method != self.plain and self._may_hope(method, texts, unread):
            speed *= 1.0 + HOPE / max(self._texts[method], FEWEST) ** 0.5
        rounds = tokens / max(speed, 1e-3)
        if method != self.current:
            rounds *= 1 + LEAD
        if method != self.plain:
            rounds += self.prices[method].reading(unread(method))
        return rounds

    def _may_hope(
        self, method: int, texts: Sequence[Text], unread: Callable[[int], int]
    ) -> bool:
        """Whether a text is new, and a try may lose what it takes."""
        if not self._is_anew(texts):
            return False
        loss = EVERY * (1.0 / max(self.speeds[method], 1e-3) - 1.0)
        loss += self.prices[method].reading(unread(method))
        # half of what is left, so that a long prompt does not take all of it
        return 2 * loss <= MODELS - self.guard.lost

    def _is_anew(self, texts: Sequence[Text]) -> bool:
        """Whether a text is new, or was decoded plainly for as long as one."""
        return self.streak >= LONG or any(text.method < 0 for text in texts)

    def gain(self, expected: float, rows: int, texts: int) -> float:
        """Return what a draft that was looked up for one of so many texts gains over
        the method in use, in tokens of a text: `expected` of its `rows` should be
        accepted. A draft model in use has to read them afterwards, and is left for a
        clear gain only.
        """
        speed = self.speeds.get(self.current, 1.0)
        spent = 1.0 + rows * self.row * texts
        if self.current != self.plain:
            spent += self.prices[self.current].reading(1.0 + expected)
            spent *= 1.0 + LEAD
        return 1.0 + expected - speed * spent

    # ---- learn

    def pass_plain(self) -> None:
        """Record a round of plain decoding."""
        self._left -= 1
        self.streak += 1
        if self.streak >= TRIAL:
            self._saved = 0.0
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
        spent = price.steady(depth, spent, unread, self.row)
        first = not price.is_warm
        price.learn(depth, spent, unread)
        self.guard.charge((0.0 if first else spent) - tokens)
        if not (first or unread):
            self.guard.record(tokens / spent)
        self.streak = 0
        self._saved += SHARE
        self._left -= 1
