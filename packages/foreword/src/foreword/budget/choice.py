"""CHOOSE: which of several arms (a method with its budget, or plain decoding) takes the
least time per token, by what each one gained in rounds of its own or on the same text.

Knows numbers alone: no models, no drafters and no clock.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field

from foreword.estimators import DECAY, OUTLIER, finite, shrunk

MEMORY = 0.995
"""Weight of the past in an arm's speed, per round: some 200 rounds, several answers."""
STEADY = 32.0
"""Tokens. Weight of an arm's mean on all texts in its speed on one text."""
SPAN = 8
"""Rounds between decisions, and the rounds of one trial."""
LEAD = 1.25
"""Times the speed of the arm in use that another must reach to replace it within a
text: speeds on one text are uncertain, and a switch makes the other drafter catch up.
"""
SHARE = 0.005
"""Share of the time that trials of slower arms may lose."""
START = 8.0
"""Rounds of plain decoding that trials may lose at once, before any are saved up."""
UNTRIED = 0.5
"""Share of a trial's time that is expected to be lost by an arm never tried."""
RECALLED = 32.0
"""Rounds of plain decoding. Weight of a speed that was measured before this process."""
RETRY = 64
"""Rounds without an arm after which it may be tried again."""


@dataclass(slots=True)
class Speed:
    """Tokens written, and their time in rounds of plain decoding, with decay."""

    tokens: float = 0.0
    spent: float = 0.0
    rounds: int = 0
    """Rounds seen, without decay."""

    def add(self, tokens: float, spent: float, memory: float = MEMORY) -> None:
        """Record a round."""
        if not finite(tokens, spent):
            return
        self.tokens = memory * self.tokens + tokens
        self.spent = memory * self.spent + spent
        self.rounds += 1

    @property
    def pace(self) -> float:
        """Tokens in the time of one round of plain decoding; 1 before any round."""
        return self.tokens / self.spent if self.spent else 1.0


@dataclass(slots=True)
class OnText:
    """How one arm does on one text, against its mean on all texts."""

    tokens: float = 0.0
    expected: float = 0.0
    """Tokens that the arm would have written at its mean speed."""

    def add(self, tokens: float, expected: float) -> None:
        """Record a round on this text."""
        self.tokens = DECAY * self.tokens + tokens
        self.expected = DECAY * self.expected + expected

    @property
    def ratio(self) -> float:
        """Speed on this text over the mean speed, shrunk toward 1."""
        return shrunk(self.tokens, self.expected, 1.0, STEADY)


Ratios = Sequence[Sequence[float]]
"""By sequence, by arm: `OnText.ratio`."""


@dataclass(slots=True)
class Choice:
    """Which arm requests of one kind use: the one that leads, followed with hysteresis.

    Feedback is full where it is free (HedgeSpec, arXiv 2510.20064, section 4): an arm
    that looks up its draft tokens is scored on the text that another arm wrote. The
    loss is time per token, and losses decay, so that the weights of Hedge are decided
    after a few rounds and following the leader does the same. Arms that
    need a forward of their own are tried instead, for SPAN rounds, within a share of
    the time.
    """

    arms: int
    plain: int
    """The arm that decodes without draft tokens: its speed is 1."""
    speeds: list[Speed] = field(init=False)
    """By arm, of rounds in which it was in use."""
    scored: list[Speed] = field(init=False)
    """By arm, of rounds that another arm wrote and that it was scored on."""
    reread: list[Speed] = field(init=False)
    """By arm with a draft model that read what others wrote: tokens, and the time that
    chains of its draft tokens would have taken."""
    drafting: list[Speed] = field(init=False)
    """By arm: draft tokens of its rounds, and the time of drafting them."""
    current: int = 0
    spare: float = START
    """Rounds of plain decoding that trials may lose now."""
    left: int = SPAN
    """Rounds until the next decision."""
    trial: bool = False
    """Whether the arm in use is being tried."""
    rounds: int = 0
    """Rounds so far."""
    used: list[int] = field(init=False)
    """By arm: the last round that used it."""
    is_new: bool = False
    """Whether a text has begun since the last decision."""
    by_text: bool = False
    """Whether the arm in use does better on this text than the best one in the mean.

    Its rounds then say nothing about other texts.
    """

    def __post_init__(self) -> None:
        self.speeds = [Speed() for _ in range(self.arms)]
        self.scored = [Speed() for _ in range(self.arms)]
        self.reread = [Speed() for _ in range(self.arms)]
        self.drafting = [Speed() for _ in range(self.arms)]
        self.used = [0] * self.arms

    def start_from(self, other: Choice) -> None:
        """Begin with what requests of another kind have shown, as if in SPAN rounds."""
        self.current = other.best([])
        for ours, theirs in ((self.speeds, other.speeds), (self.scored, other.scored)):
            for speed, known in zip(ours, theirs, strict=True):
                share = min(1.0, SPAN / known.spent) if known.spent else 0.0
                speed.tokens = share * known.tokens
                speed.spent = share * known.spent
                speed.rounds = known.rounds
        self.spare = other.spare

    def recall(self, paces: Sequence[float | None]) -> None:
        """Begin with these speeds, of earlier processes; None = not known."""
        for speed, pace in zip(self.speeds, paces, strict=False):
            if pace is not None:
                speed.tokens, speed.spent = pace * RECALLED, RECALLED
                speed.rounds = SPAN
        self.current = self.best([])
        # trials are saved up first: what they could find is known
        self.spare = UNTRIED * SPAN * paces.count(None)

    def pass_plain(self) -> None:
        """Record a round of plain decoding."""
        self.rounds += 1
        self.left -= 1
        self.speeds[self.plain].rounds += 1
        self.used[self.plain] = self.rounds
        if self.trial and self.current == self.plain:
            fastest = self.pace(self.best([]))
            self.spare -= max(1 - 1 / fastest, 0.0)
        else:
            self.spare = min(self.spare + SHARE, 2 * START)

    def learn(
        self, arm: int, tokens: float, spent: float, *, catches_up: bool = False
    ) -> None:
        """Record a round of an arm: `tokens` per sequence, in the time of `spent`
        rounds of plain decoding.

        One in which the drafter `catches_up` with what another arm wrote says nothing
        about its speed.
        """
        if not finite(tokens, spent):
            return
        self.rounds += 1
        self.left -= 1
        speed = self.speeds[arm]
        if speed.rounds >= SPAN:
            # one stall of the machine says nothing about an arm
            mean = speed.spent / min(speed.rounds, 1 / (1 - MEMORY))
            spent = min(spent, OUTLIER * max(mean, 1.0))
        if not (self.by_text or catches_up):
            speed.add(tokens, spent)
        self.used[arm] = self.rounds
        if self.trial and arm == self.current:
            fastest = self.pace(self.best([], out=[arm]))
            self.spare -= max(spent - tokens / fastest, 0.0)
        else:
            self.spare = min(self.spare + SHARE * spent, 2 * START)

    def begin_text(self) -> None:
        """Choose anew for a new text, unless an arm is being tried."""
        if not self.trial:
            self.left = 0
            self.is_new = True

    def pace(self, arm: int) -> float:
        """Return the mean speed of an arm over plain decoding."""
        if arm == self.plain:
            return 1.0
        own = self.speeds[arm]
        return (own if own.rounds >= SPAN else self.scored[arm]).pace

    def known(self, arm: int) -> bool:
        """Whether the speed of an arm was measured in enough rounds."""
        return arm == self.plain or self._evidence(arm) >= SPAN

    def _evidence(self, arm: int) -> int:
        """Return the rounds that tell the speed of an arm."""
        return max(self.speeds[arm].rounds, self.scored[arm].rounds)

    def best(self, ratios: Ratios, out: Collection[int] = ()) -> int:
        """Return the fastest known arm for sequences of these ratios together that is
        not `out`; the first one while none is known.
        """
        arms = [arm for arm in range(self.arms) if arm not in out]
        known = [arm for arm in arms if self.known(arm)]
        if known == [self.plain]:
            return arms[0]
        return min(known, key=lambda arm: self.seconds(arm, ratios))

    def seconds(self, arm: int, ratios: Ratios) -> float:
        """Return the time per token of an arm, in rounds of plain decoding, summed over
        sequences of these ratios.
        """
        pace = self.pace(arm)
        if not ratios or arm == self.plain:
            return max(len(ratios), 1) / pace
        return sum(1.0 / (pace * ratio[arm]) for ratio in ratios)

    def decide(self, ratios: Callable[[], Ratios], out: Collection[int] = ()) -> int:
        """Return the arm of the next rounds, none of `out`: those cannot draft now."""
        if self.left > 0 and self.current not in out:
            return self.current
        keeps = not (self.trial or self.is_new or self.current in out)
        self.left = SPAN
        self.trial = self.is_new = False
        untried = self._to_try(out)
        if untried is not None:
            self.trial, self.by_text = True, False
            self.current = untried
            return untried
        if not keeps:
            self.current = self.best([], out)
            self.by_text = False
        now = ratios()
        best = self.best(now, out)
        if self.seconds(best, now) * LEAD < self.seconds(self.current, now):
            self.current = best
            self.by_text = True
        return self.current

    def _to_try(self, out: Collection[int]) -> int | None:
        """Return an arm to try now, if trials may lose the time that it takes.

        Plain decoding is one of them: its rounds show what the others are measured by.
        """
        arms = [arm for arm in range(self.arms) if arm not in out]
        for arm in arms:
            if not self.known(arm):
                return arm if self.spare >= UNTRIED * SPAN else None
        leader = self.pace(self.best([], out))
        loss = {
            arm: SPAN * max(1 - self.pace(arm) / leader, 0.0)
            for arm in arms
            if self.rounds - self.used[arm] >= RETRY
        }
        if not loss:
            return None
        # what is little known and costs little comes first
        arm = min(loss, key=lambda arm: loss[arm] * self._evidence(arm))
        return arm if self.spare >= loss[arm] else None
