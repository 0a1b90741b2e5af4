"""As many guesses as earn the most text per second, from what rounds cost and what guesses earned.

How many to ask for is chosen from past rounds alone, never from the guesses it is about, so it is exact under every
rule. Guesses that were chosen, not drawn, may also be dropped for their own chances (`trim`).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from itertools import product

from foreword.draft.evidence import finite, steadied
from foreword.draft.making import Making
from foreword.draft.trust import Earned
from foreword.types import Clock, Draft, Sequence
from foreword.width.base import Measure, Outcome, Width
from foreword.width.costs import Costs

LIMIT = 16
"""Longest chain that is ever tried."""
UNPRICED = 4
"""Longest chain while nobody knows what a guess costs."""
MOST = 48
"""Largest tree that is ever tried."""
DECAY = 0.95
"""Weight of the past, per round: about twenty rounds are remembered."""
OPTIMISM = 0.7
"""The chance that a first guess is kept, before anything is known."""
PATIENCE = 4
"""Rounds without guessing before it is tried again, the first time it loses; twice as many every time it still does."""
LONGEST = 256
"""Rounds without guessing at most, while guesses may cost anything."""
PURSE = 8
"""Rounds whose time guesses may lose beforehand: they are given a chance."""
SHARE = 0.02
"""Share of the time without guesses that they may lose when they are tried again."""
HIGHEST = 0.5
"""The highest floor. Where no chance reaches it nothing is drafted, so nothing is learnt that lowers it."""
REMINDER = 64
"""Rounds with guesses after which one without shows again what plain decoding costs."""


@dataclass(slots=True)
class _Record:
    """Decayed counts of one sequence."""

    scored: list[float] = field(default_factory=lambda: [0.0] * LIMIT)
    """Rounds in which a guess of depth i was judged."""
    kept: list[float] = field(default_factory=lambda: [0.0] * LIMIT)
    """Rounds in which it was kept."""
    written: float = 0.0
    """Tokens of rounds with guesses."""
    spent: float = 0.0
    """Seconds of rounds with guesses."""
    pause: int = 0
    """Rounds to go without guessing."""
    patience: int = PATIENCE
    """Length of the next pause at least; doubles each time guessing still loses, until a try wins."""
    lost: float = 0.0
    """Of a kind of texts: seconds that guesses have lost, less what they won and what they are allowed.

    Beyond the purse nothing that loses is tried, so all texts together take little longer than without guesses.
    """

    def add(self, outcome: Outcome, *, said: bool) -> None:
        """Learn from a round. Where guesses have said how likely they are, nobody asks how deep they were kept."""
        if not finite(outcome.seconds):
            return
        for depth in range(0 if said else LIMIT):
            self.scored[depth] *= DECAY
            self.kept[depth] *= DECAY
            if depth < min(outcome.drafted, outcome.accepted + 1):
                self.scored[depth] += 1
                self.kept[depth] += depth < outcome.accepted
        self.written = DECAY * self.written + outcome.accepted + 1
        self.spent = DECAY * self.spent + outcome.seconds

    def loses(self, plainly: float) -> bool:
        """Rounds without guesses, of `plainly` seconds each, would have written more."""
        return self.written * plainly < 0.98 * self.spent

    def rest(self) -> None:
        """Stop guessing for a while. Old rounds count little afterwards: the text may have become easier."""
        self.pause = self.patience
        self.patience = min(2 * self.patience, LONGEST)
        self.written *= 0.3
        self.spent *= 0.3


@dataclass(slots=True)
class _Odds:
    """What is learnt about drafters that say how likely their guesses are."""

    known: bool = False
    """Such drafts have been seen."""
    most: int = 8
    """Guesses to ask for: more than are kept after trimming, so that it can grow."""
    made: int | None = None
    """Guesses in the draft of this round, before trimming; None where none was asked for."""
    making: Making = field(default_factory=Making)
    earned: Earned = field(default_factory=Earned)

    def settle(self, kept: list[int], promised: float) -> None:
        self.known = True
        self.most = min(max(max(kept, default=0) + 2, (15 * self.most) // 16, 4), MOST)
        if kept and max(kept) >= self.most - 2:
            self.most = min(self.most + 4, MOST)
        self.earned.promise(promised)


class Measured(Width):
    """Guesses as many tokens as earn the most text per second, and none while guessing loses to plain decoding.

    Text per second of k guesses in a chain is (1 + sum over j <= k of the chance that the first j are kept) over the
    time of a round with k guesses (Leviathan et al. 2023, section 3.3, with the measured cost of every width instead
    of one ratio). Chances are this sequence's own, steadied by those of all that are drawn alike; costs are measured.
    Where a drafter says how likely each guess is, the likeliest are kept, of all sequences together, as long as each
    earns more than its scoring costs (after arXiv 2607.05147, section on scheduling, and SMART/CaDDTree for trees).
    """

    summary = "as many as earn the most text per second, by measured costs and acceptance; none while they lose"

    def __init__(self, cost: Mapping[int, float]) -> None:
        self.costs = Costs(cost)
        self._guess = 0.0
        """Seconds of making one guess, where as many are made as are asked for."""
        self._making = 0.0
        """Seconds of making all guesses of a round."""
        self._rest = self._bare = 0.0
        """Seconds of deciding and keeping, with guesses and without: several times as much on a small model."""
        self._usual = {kind: _Record() for kind in product((True, False), repeat=2)}
        """Those of all texts of a kind: the likeliest apart from drawn ones, for they are foreseen further, and those

        with filters, penalties and the like apart: guesses take several times as long there, which others must not pay.
        """
        self._now = self._usual[True, True]
        """Those of texts like the one that was last asked about."""
        self._records: dict[int, _Record] = {}
        self._odds = _Odds()
        self._asked = False
        """Guesses were asked for in this round."""
        self._fresh = self._first = False
        """Some of them (in the last round) for a text that was not guessed at before: drafters read it all, once."""
        self._since = 0
        """Rounds with guesses since the last one without any."""
        self._rows = 1
        """Sequences in this round."""
        self._plain = 0.0
        """Seconds that it would have taken without guesses: its own, for what a table says may be from another hour."""

    @classmethod
    def made(cls, measure: Measure) -> Measured:
        return cls(measure())

    @property
    def floor(self) -> float:
        """The chance at which a guess earns its making and half of its scoring; the rest of the choice is `trim`'s."""
        odds = self._odds
        if not odds.known:
            return 0.0
        earns = self.pace * (0.5 * self.costs.slope(1, odds.most) + odds.making.each) / odds.earned.share
        return min(earns, HIGHEST)

    @property
    def pace(self) -> float:
        plainly = self.costs.seconds(self._rows) + self._after_plain
        return max(1.0 / plainly, self._now.written / max(self._now.spent, 1e-9))

    @property
    def _after_plain(self) -> float:
        """Seconds of deciding and keeping where nothing was guessed; the same as with guesses until that was seen."""
        return self._bare or self._rest

    def nodes(self, sequence: Sequence, company: int) -> int:
        count = self._wanted(sequence, company)
        self._asked |= count > 0
        self._fresh |= count > 0 and not self._records[sequence.id].spent
        return count

    def trim(self, draft: Draft) -> Draft:
        if not (draft.nodes and draft.weighed):
            self._odds.made = 0 if self._odds.known else None
            self._odds.earned.promise(0.0)
            return draft
        rows = [tree.chances for tree in draft.trees]
        chances = sorted((chance for row in rows for chance in row), reverse=True)
        self._odds.made = len(chances)
        count = self._paying(chances, len(rows))
        least = chances[count - 1] if count else 1.1
        kept = [sum(chance >= least for chance in row) for row in rows]
        self._odds.settle(kept, sum(chances[:count]))
        if kept == [len(row) for row in rows]:
            return draft
        return Draft(tree.pruned(range(count)) for tree, count in zip(draft.trees, kept, strict=True))

    def clocked(self, rows: int, clock: Clock) -> None:
        if not finite(clock.total):
            return
        after = clock.decide + clock.keep
        if self._asked:
            self._rest = _blend(self._rest, after)
        else:
            self._bare = _blend(self._bare, after)
        ratio = self.costs.seconds(self._rows) / self.costs.seconds(rows)
        self._plain = clock.score * ratio + min(self._after_plain, after)
        self.costs.correct(rows, clock.score)
        self._since, self._asked = self._since + 1 if self._asked else 0, False
        self._first, self._fresh = self._fresh, False
        if self._odds.made is not None and not self._first:
            self._odds.making.learn(self._odds.made, clock.guess)
        self._odds.made = None

    def learn(self, sequence: Sequence, outcome: Outcome) -> None:
        record = self._records.setdefault(sequence.id, _Record())
        usual = self._usual[_kind(sequence)]
        if not outcome.asked:
            usual.lost = max(usual.lost - SHARE * outcome.seconds / self._rows, 0.0)
            return
        # The first guesses of a process take longer than any others will.
        gained = (outcome.accepted + 1) * self._plain - outcome.seconds + (not usual.spent) * outcome.guess
        if finite(gained):
            # One stall, of this process or its machine, is no reason to wait for hours.
            usual.lost = min(max(usual.lost - gained / self._rows, 0.0), LONGEST * self._plain)
        if self._first:
            # What the drafter took to read the text is spent, whatever is done now.
            outcome = replace(outcome, seconds=outcome.seconds - outcome.guess + self._making)
        else:
            self._guess = _blend(self._guess, outcome.guess / outcome.asked)
            self._making = _blend(self._making, outcome.guess)
        record.add(outcome, said=self._odds.known)
        usual.add(outcome, said=self._odds.known)
        self._odds.earned.keep(outcome.accepted)
        if gained > 0:
            record.pause, record.patience = 0, PATIENCE

    def release(self, sequence: Sequence) -> None:
        self._records.pop(sequence.id, None)

    def _wanted(self, sequence: Sequence, company: int) -> int:
        record = self._records.setdefault(sequence.id, _Record())
        self._rows = company + 1
        self._now = self._usual[_kind(sequence)]
        plainly = self.costs.seconds(self._rows) + self._after_plain
        empty = self._now.lost > PURSE * plainly and self._now.loses(plainly)
        record.pause = max(record.pause - 1, 0)
        if record.pause or self._since >= REMINDER or (empty and not record.spent):
            return 0
        best = self._odds.most if self._odds.known else self._best(record, self._rows)
        if record.loses(plainly) if self._odds.known else not best:
            # Losing now is no reason to lose for good: try it, then pause, and longer each time.
            if not empty:
                record.rest()
            return 0 if empty else max(best, 1)
        return best

    def _best(self, record: _Record, rows: int) -> int:
        """The number of guesses with the most tokens per second, when `rows` sequences guess that many each."""
        best, fastest = 0, 1.0 / (self.costs.seconds(rows) + self._after_plain)
        earned, reached, prior = 1.0, 1.0, OPTIMISM
        for depth in range(LIMIT if self._guess else UNPRICED):
            # Own rounds count most, then everybody's; a depth nobody has tried is thought as good as the one before.
            prior = (self._now.kept[depth] + 2 * prior) / (self._now.scored[depth] + 2)
            reached *= (record.kept[depth] + 2 * prior) / (record.scored[depth] + 2)
            earned += reached
            rate = earned / (self.costs.seconds(rows * (2 + depth)) + self._rest + (1 + depth) * self._guess)
            if rate > fastest:
                best, fastest = 1 + depth, rate
        return best

    def _paying(self, chances: list[float], rows: int) -> int:
        """How many guesses of these chances, likeliest first, earn the most tokens per second."""
        making = self._odds.making
        spent = self._rest + making.start + making.each * len(chances)  # they are made, whatever becomes of them
        best, fastest, earned = 0, rows / (self.costs.seconds(rows) + spent), float(rows)
        for count, chance in enumerate(chances, 1):
            earned += self._odds.earned.share * chance
            rate = earned / (self.costs.seconds(rows + count) + spent)
            if rate > fastest:
                best, fastest = count, rate
        return best


def _blend(old: float, new: float) -> float:
    return old + 0.1 * (steadied(new, old) - old) if old else steadied(new, old)


def _kind(sequence: Sequence) -> tuple[bool, bool]:
    return sequence.params.greedy, sequence.params.plain
