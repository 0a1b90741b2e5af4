"""Decayed counts of accepted draft tokens, for one request or for all of a kind."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from foreword.budget.base import RoundResult
from foreword.budget.batch_gain import PredictedGain
from foreword.budget.constants import C
from foreword.estimators import DECAY, shrunk
from foreword.types import DraftTree, Request


@dataclass(slots=True)
class AcceptanceRecord:
    """Decayed counts of one request, or of all requests of a kind."""

    greedy: bool = True
    """No draft token is drawn."""
    plain: bool = True
    """Nothing is filtered, forbidden or penalised."""
    scored: list[float] = field(default_factory=lambda: [0.0] * C.chain)
    """Rounds in which a draft token of depth i was verified."""
    kept: list[float] = field(default_factory=lambda: [0.0] * C.chain)
    """Rounds in which it was accepted."""
    predicted: PredictedGain = field(default_factory=PredictedGain)
    read: int = 0
    """Tokens of the request after the last round with draft tokens."""
    paused_until: int = 0
    """Round of the budget until which nothing is drafted."""
    backoff: int = C.backoff
    """Rounds of the next pause at least; doubles each time drafting still loses, until
    a try wins.
    """

    def add(
        self, outcome: RoundResult, tree: DraftTree | None, *, weighed: bool
    ) -> None:
        """Learn from a round.

        If drafts are weighed (state probabilities), acceptance by depth is not needed.
        """
        if tree is not None:
            self.predicted.add(tree, DECAY)
        for depth in range(0 if weighed else C.chain):
            self.scored[depth] *= DECAY
            self.kept[depth] *= DECAY
            if depth < min(outcome.drafted, outcome.accepted + 1):
                self.scored[depth] += 1
                self.kept[depth] += depth < outcome.accepted

    def reached(self, overall: AcceptanceRecord) -> Iterator[float]:
        """Yield, by depth, the probability that a chain is accepted so far.

        The request's own rounds weigh most, then the rounds of `overall`; an untried
        depth inherits the one before.
        """
        prior = C.first
        reached = 1.0
        for depth in range(C.chain):
            prior = overall.acceptance(depth, prior)
            reached *= self.acceptance(depth, prior)
            yield reached

    def acceptance(self, depth: int, prior: float) -> float:
        """Return the probability that a draft token of this depth is accepted after
        those before it.
        """
        kept, scored = self.kept[depth], self.scored[depth]
        return shrunk(kept, scored, prior, C.prior)

    def unread(self, request: Request) -> int:
        """Return the tokens to catch up on, or 0 for the few that a round or
        two add.
        """
        count = len(request.tokens) - self.read
        return count if count > C.unread else 0

    def back_off(self, now: int) -> None:
        """Pause drafting from round `now` on, each time for longer."""
        self.paused_until = now + self.backoff
        self.backoff = min(2 * self.backoff, C.longest)


@dataclass(slots=True)
class Requested:
    """What the requests of one round asked the drafter for."""

    sequences: int = 0
    """Requests that may get draft tokens."""
    unread: int = 0
    """Tokens of them that the drafter has to read before."""
    filtered: bool = False
    """Whether one of them has filters or the like."""
    probing: bool = False
    """Whether one of them only tries drafting out."""


@dataclass(slots=True)
class Rest:
    """Rounds in which nothing is considered, after two in which nothing was worth
    drafting.
    """

    left: int = 0
    """Rounds to go."""
    seconds: float = 0.0
    """Duration of such rounds since the last decision."""
    running: tuple[int, int] = (0, 0)
    """Requests of the last decision, and the id of the newest one."""

    def covers(self, requests: Sequence[Request]) -> bool:
        """Return whether a round of these requests is one of them: a new request, or
        one fewer, may change what is worth drafting.
        """
        if not self.left:
            return False
        return self.running == (len(requests), requests[-1].id)

    def interrupt(self, request: Request, others: int) -> None:
        """End it, for a decision on a request."""
        self.left = 0
        self.running = (others + 1, request.id)

    def passed(self, seconds: float) -> bool:
        """Return whether a round that is over was one of them."""
        if not self.left:
            return False
        self.left -= 1
        self.seconds += seconds
        return True

    def taken(self) -> float:
        """Return the seconds since the last decision, once."""
        seconds, self.seconds = self.seconds, 0.0
        return seconds
