"""As many guesses as earn the most text per second, from what rounds cost and what guesses earned.

How many to ask for is chosen from past rounds alone, never from the guesses it is about, so it is exact under every
rule. Guesses that were chosen, not drawn, may also be dropped for their own chances (`trim`).
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from itertools import product

from foreword.draft.evidence import finite, steadied
from foreword.types import Clock, Draft, Sequence
from foreword.width.asking import Asking
from foreword.width.base import Measure, Outcome, Width
from foreword.width.company import Company
from foreword.width.costs import Costs
from foreword.width.odds import Odds
from foreword.width.record import LIMIT, LONGEST, PATIENCE, Record

UNPRICED = 4
"""Longest chain while nobody knows what a guess costs."""
OPTIMISM = 0.7
"""The chance that a first guess is kept, before anything is known."""
FLUKE = 4.0
"""How many times what was expected a round counts at most: the processor may have been somebody else's."""
PURSE = 8
"""Rounds whose time guesses may lose beforehand: they are given a chance."""
SHARE = 0.01
"""Share of the time without guesses that they may lose when they are tried again."""
HIGHEST = 0.5
"""The highest floor. Where no chance reaches it nothing is drafted, so nothing is learnt that lowers it."""
REMINDER = 64
"""Rounds with guesses after which one without shows again what plain decoding costs."""


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
        self._lines = {plain: Asking() for plain in (True, False)}
        """What it takes to ask for guesses: at plain texts, and (several times more) where some are filtered."""
        self.asking = self._lines[True]
        """That of the text that was last asked about."""
        self._rest = self._bare = 0.0
        """Seconds of deciding and keeping a text, with guesses and without: several times as much on a small model."""
        self._usual = {kind: Record() for kind in product((True, False), repeat=2)}
        """Those of all texts of a kind: the likeliest apart from drawn ones, for they are foreseen further, and those

        with filters, penalties and the like apart: guesses take several times as long there, which others must not pay.
        """
        self._now = self._usual[True, True]
        """Those of texts like the one that was last asked about."""
        self._records: dict[int, Record] = {}
        self._odds = Odds()
        self._promised: list[list[float]] = []
        """The chances that were said in this round, text by text."""
        self._plans: dict[tuple[bool, bool], tuple[float, float]] = {}
        """What guesses at texts of a kind earn and cost in this round; see `Company.best`."""
        self._hopeless: dict[Asking, bool] = {}
        """Nothing could pay in this round, at either kind of texts; empty where nobody has looked."""
        self._wanted = self._unread = self._texts = 0
        """Guesses that were asked for in this round, tokens to be read before, and the texts they were asked for."""
        self._tried = self._filtered = False
        """One of these texts has filters or the like, and one is not expected to gain by them."""
        self._since = 0
        """Rounds with guesses since the last one without any."""
        self._rows = 1
        """Sequences in this round."""
        self._plain = self._longer = self._caught_up = 0.0
        """Seconds that the last round would have taken without guesses, how much longer it took for each text that was
        asked about, and how much of that went into reading. The first is its own, for a table may be from another hour.
        """
        self._length = 0.0
        """Tokens of an answer, on average; 0 before any ended."""

    @classmethod
    def made(cls, measure: Measure) -> Measured:
        return cls(measure())

    @property
    def floor(self) -> float:
        """The chance at which a guess earns its making and half of its scoring; the rest of the choice is `trim`'s."""
        odds = self._odds
        if not odds.known:
            return 0.0
        scoring = 0.5 * self.costs.slope(self._rows, odds.most)
        return min(self._rows * self.pace * (scoring + odds.making.each) / odds.earned.share, HIGHEST)

    @property
    def pace(self) -> float:
        faster = max(1.0, self._now.written / max(self._now.spent, 1e-9))
        return faster / self._company(self._rows).plainly

    def _company(self, texts: int) -> Company:
        """Without guesses texts take as long to keep as with them until that was seen."""
        return Company(texts, self.costs, self.asking, self._bare or self._rest, self._rest)

    def nodes(self, sequence: Sequence, company: int) -> int:
        record = self._records.setdefault(sequence.id, Record())
        if self._rows != company + 1:
            self._rows, self._plans, self._hopeless = company + 1, {}, {}
        self._now, self.asking = self._usual[_kind(sequence)], self._lines[sequence.params.plain]
        count = self._choose(sequence, record)
        if count:
            self._wanted, self._texts = self._wanted + count, self._texts + 1
            self._filtered |= not sequence.params.plain
            self._unread += record.unread(sequence)
        return count

    def trim(self, draft: Draft) -> Draft:
        rows = [tree.chances for tree in draft.trees]
        if not (draft.nodes and draft.weighed):
            self._odds.made = 0 if self._odds.known else None
            self._promised = rows if self._odds.known and not draft.nodes else []
            self._odds.earned.promise(0.0)
            return draft
        self._promised = rows
        chances = sorted((chance for row in rows for chance in row), reverse=True)
        self._odds.made = len(chances)
        count = self._paying(chances, len(rows))
        least = chances[count - 1] if count else 1.1
        kept = [sum(chance >= least for chance in row) for row in rows]
        self._odds.settle(kept, sum(chances[:count]))
        if kept == [len(row) for row in rows]:
            return draft
        return Draft(tree.pruned(range(count)) for tree, count in zip(draft.trees, kept, strict=True))

    def clocked(self, rows: int, clock: Clock, reading: int = 0) -> None:
        if not finite(clock.total):
            clock = Clock()
        after, company = clock.decide + clock.keep, self._company(self._rows)
        for usual in self._usual.values():
            usual.lost = max(usual.lost, 0.0)  # one text's loss is another one's gain, but not another round's
        if reading:
            scoring = self.costs.seconds(rows + reading) - self.costs.seconds(self._rows + reading)
            self._plain, longer = company.plainly, clock.guess + max(scoring, 0.0)
        else:
            if self._texts:
                self._rest = _blend(self._rest, after / self._rows)
            else:
                self._bare = _blend(self._bare, after / self._rows)
            ratio = self.costs.seconds(self._rows) / self.costs.seconds(rows)
            self._plain = clock.score * ratio + min(self._rows * (self._bare or self._rest), after)
            longer = clock.total - self._plain
            self.costs.correct(rows, clock.score)
        self._account(clock, longer, rows)
        self._plans, self._hopeless = {}, {}

    def _account(self, clock: Clock, longer: float, rows: int) -> None:
        """What guesses cost in the last round, which took so much longer for them; one slow round says little."""
        if not self._texts:
            self._longer = self._caught_up = 0.0
            self._since = 0
            return
        self.asking = self._lines[not self._filtered]
        caught_up, guess = self.asking.catching_up(self._unread), clock.guess
        if not self.asking.known:
            longer -= guess  # the first guesses of a process take longer than any others will
        elif not self._unread or self.asking.reads:
            guess = min(guess, FLUKE * (self.asking.seconds(self._wanted) + caught_up))
            scoring = self.costs.slope(self._rows, max(rows - self._rows, 1)) * (rows - self._rows)
            longer = min(longer, guess + FLUKE * (scoring + self._rows * self._rest))
            if self._odds.made is not None:
                self._odds.making.learn(self._odds.made, max(guess - caught_up, 0.0))
        self._longer, self._caught_up = longer / self._texts, min(caught_up, max(longer, 0.0)) / self._texts
        self.asking.learn(self._wanted, self._unread, guess)
        self._since, self._odds.made = self._since + 1, None
        self._wanted = self._unread = self._texts = 0
        self._tried = self._filtered = False

    def learn(self, sequence: Sequence, outcome: Outcome) -> None:
        promised = self._promised.pop(0) if self._promised else None
        usual = self._usual[_kind(sequence)]
        if not outcome.asked or not finite(outcome.seconds):
            if not self._longer and finite(outcome.seconds):  # nobody was asked about
                usual.lost = max(usual.lost - SHARE * outcome.seconds / self._rows, 0.0)
            return
        record = self._records.setdefault(sequence.id, Record())
        record.read = len(sequence.tokens)
        worth = self._plain / self._rows
        gained = outcome.accepted * worth - self._longer
        if finite(gained):
            # One stall, of this process or its machine, is no reason to wait for hours.
            usual.lost = min(usual.lost - gained, LONGEST * self._plain)
        spent = 1.0 + (self._longer - self._caught_up) / max(worth, 1e-9)
        for one in (record, usual):
            one.add(outcome, spent, promised, said=self._odds.known)
        self._odds.earned.keep(outcome.accepted)
        if gained > 0:
            record.pause, record.patience = 0, PATIENCE

    def release(self, sequence: Sequence) -> None:
        if self._records.pop(sequence.id, None) is not None:
            self._length = _blend(self._length, float(sequence.produced))

    def _choose(self, sequence: Sequence, record: Record) -> int:
        """How many guesses to ask for at this text: as many as pay, or a few to see whether they would."""
        record.pause = max(record.pause - 1, 0)
        if record.pause or self._since >= REMINDER:
            return 0
        company, unread = self._company(self._rows), record.unread(sequence)
        if self.asking not in self._hopeless:
            self._hopeless[self.asking] = company.hopeless()
        if self._hopeless[self.asking] and self._now.lost > 0:
            return 0
        purse = PURSE * company.plainly
        if self._now.lost > purse and (unread or self._now.loses):
            return 0
        count, gain = self._best(sequence, record, company)
        reading = self.asking.catching_up(unread)
        if count and gain * self._left(sequence) > reading:
            # One after the other while nobody knows what it takes to read a text, or anything at all.
            alone = not self.asking.known or (unread and not self.asking.reads)
            return 0 if alone and self._texts else count
        # Losing now is no reason to lose for good: try it, then pause, and longer each time.
        cost = self.asking.seconds(max(count, 1)) + reading
        if self._tried or 0 < self._now.lost > purse - cost:
            return 0
        self._tried = True
        record.rest()
        return max(count, 1)

    def _left(self, sequence: Sequence) -> float:
        """Rounds that are expected of a text: as many as others had, or as it has had, if there is room."""
        left = max(self._length - sequence.produced, float(sequence.produced), 1.0) if self._length else sequence.room
        pace = self._now.written / self._now.spent if self._now.spent else 1.0
        return min(left, sequence.room) / max(pace, 1.0)

    def _best(self, sequence: Sequence, record: Record, company: Company) -> tuple[int, float]:
        """How many guesses would write the most tokens per second, and the seconds that this text gains in a round."""
        if not self._odds.known:
            return self._chain(record, company)
        kind, usual = _kind(sequence), self._now.promised
        if not usual.rounds:
            return self._odds.most, math.inf if not self._texts else 0.0
        if kind not in self._plans:
            self._plans[kind] = company.best(usual, self._odds.earned.share, self._odds.most)
        earned, longer = self._plans[kind]
        return self._odds.most, record.promised.beside(usual) * earned * company.worth - longer

    def _chain(self, record: Record, company: Company) -> tuple[int, float]:
        best, gain, plainly, fastest = 0, 0.0, company.plainly, 1.0 / company.plainly
        earned, reached, prior = 0.0, 1.0, OPTIMISM
        for depth in range(LIMIT if self.asking.known else UNPRICED):
            # Own rounds count most, then everybody's; a depth nobody has tried is thought as good as the one before.
            prior = (self._now.kept[depth] + 2 * prior) / (self._now.scored[depth] + 2)
            reached *= (record.kept[depth] + 2 * prior) / (record.scored[depth] + 2)
            earned += reached
            longer = company.added(1.0 + depth, 1.0 + depth)
            rate = (1.0 + earned) / (plainly + company.texts * longer)
            if rate > fastest:
                best, gain, fastest = 1 + depth, earned * company.worth - longer, rate
        return best, gain

    def _paying(self, chances: list[float], rows: int) -> int:
        """How many guesses of these chances, likeliest first, earn the most tokens per second."""
        making = self._odds.making
        # They are made, whatever becomes of them.
        spent = rows * self._rest + making.start + making.each * len(chances)
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
