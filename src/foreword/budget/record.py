"""Decayed counts of accepted draft tokens, for one sequence or for all of a kind."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

from foreword.budget.base import RoundResult
from foreword.budget.batch_gain import PredictedGain
from foreword.types import Request

LIMIT = 16
"""Tokens. Longest chain tried."""
OPTIMISM = 0.7
"""Prior acceptance probability of the first draft token."""
DECAY = 0.95
"""Weight of the past, per round: a memory of about twenty rounds."""
BACKOFF = 4
"""Rounds without drafting after the first loss; doubles with every further loss."""
ANEW = 8
"""Tokens. Up to so many that the drafter has not read do not count as catching up."""
LONGEST = 256
"""Rounds. Longest pause in drafting, and the cap on recorded losses."""
LOSS_BUDGET = 8
"""Rounds of plain decoding of one sequence.

Time that speculation may lose while it is tried out.
"""
PROBE_EVERY = 64
"""Rounds with draft tokens before one without measures plain decoding again."""
MEASURE_EVERY = 8
"""Of the rounds without draft tokens, one in so many is measured: measuring takes a
hundredth of a round of few sequences.
"""
SHARE = 0.01
"""Share of plain decoding time that later tries may lose."""


@dataclass(slots=True)
class AcceptanceRecord:
    """Decayed counts of one sequence, or of all sequences of a kind."""

    greedy: bool = True
    """No draft token is drawn."""
    plain: bool = True
    """Nothing is filtered, forbidden or penalised."""
    scored: list[float] = field(default_factory=lambda: [0.0] * LIMIT)
    """Rounds in which a draft token of depth i was verified."""
    kept: list[float] = field(default_factory=lambda: [0.0] * LIMIT)
    """Rounds in which it was accepted."""
    predicted: PredictedGain = field(default_factory=PredictedGain)
    read: int = 0
    """Tokens of the sequence after the last round with draft tokens."""
    pause: int = 0
    """Rounds to go without drafting."""
    backoff: int = BACKOFF
    """Rounds of the next pause at least; doubles each time drafting still loses, until
    a try wins.
    """

    def add(
        self, outcome: RoundResult, probabilities: list[float] | None, *, weighed: bool
    ) -> None:
        """Learn from a round.

        If drafts are weighed (state probabilities), acceptance by depth is not needed.
        """
        if probabilities is not None:
            self.predicted.add(probabilities, DECAY)
        for depth in range(0 if weighed else LIMIT):
            self.scored[depth] *= DECAY
            self.kept[depth] *= DECAY
            if depth < min(outcome.drafted, outcome.accepted + 1):
                self.scored[depth] += 1
                self.kept[depth] += depth < outcome.accepted

    def reached(self, overall: AcceptanceRecord) -> Iterator[float]:
        """Yield, by depth, the probability that a chain is accepted so far.

        The sequence's own rounds weigh most, then the rounds of `overall`; an untried
        depth inherits the one before.
        """
        prior = OPTIMISM
        reached = 1.0
        for depth in range(LIMIT):
            prior = (overall.kept[depth] + 2 * prior) / (overall.scored[depth] + 2)
            reached *= (self.kept[depth] + 2 * prior) / (self.scored[depth] + 2)
            yield reached

    def unread(self, sequence: Request) -> int:
        """Return the tokens to catch up on, or 0 for the few that a round or
        two add.
        """
        count = len(sequence.tokens) - self.read
        return count if count > ANEW else 0

    def back_off(self) -> None:
        """Pause drafting, each time for longer."""
        self.pause = self.backoff
        self.backoff = min(2 * self.backoff, LONGEST)


@dataclass(slots=True)
class Requested:
    """Requests of the sequences of one round."""

    tokens: int = 0
    """Draft tokens."""
    sequences: int = 0
    """Sequences that requested some."""
    unread: int = 0
    """Tokens of them that the drafter has to read before."""
    filtered: bool = False
    """Whether one of them has filters or the like."""
    probing: bool = False
    """Whether one of them only tries drafting out."""


@dataclass(slots=True)
class Balance:
    """Gains and losses of drafting for one kind of sequences in batches of similar
    size.
    """

    written: float = 0.0
    """Tokens of rounds with draft tokens."""
    spent: float = 0.0
    """Duration of those rounds, in rounds of the same batch without draft tokens."""
    lost: float = 0.0
    """Seconds that drafting has lost, less those it won and those it is allowed.

    Once the loss budget is spent, losing drafts stop, which bounds the total slowdown.
    """
    sequences: int = 0
    """Sequences of this round that were given a budget."""

    @property
    def is_losing(self) -> bool:
        """Whether rounds without draft tokens would have written more in that time."""
        return self.written < 0.98 * self.spent

    @property
    def pace(self) -> float:
        """Tokens per round of the same batch without draft tokens, at least 1."""
        return max(1.0, self.written / self.spent) if self.spent else 1.0

    def add(self, accepted: int, spent: float) -> None:
        """Learn from one sequence's round with draft tokens."""
        self.written = DECAY * self.written + accepted + 1
        self.spent = DECAY * self.spent + spent

    def settle(self, allowed: float) -> None:
        """End a round: allow some of the loss, and save no gain up for later rounds."""
        self.lost = max(self.lost - allowed * self.sequences, 0.0)
        self.sequences = 0
