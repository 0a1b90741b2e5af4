"""The gain of drafting where several sequences share a round: its duration without
draft tokens, and what they add.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from foreword.budget.constants import C
from foreword.budget.costs import Costs, DraftingCost
from foreword.types import DraftTree


@dataclass(slots=True)
class PredictedGain:
    """Decayed counts of draft tokens by their stated probability."""

    rounds: float = 0.0
    tokens: float = 0.0
    """Draft tokens expected to be accepted: the sum of the probabilities."""
    counts: list[float] = field(default_factory=lambda: [0.0] * C.levels)
    """Draft tokens by bin of probability."""

    levels: float = 0.0
    """Levels of their trees."""

    def add(self, tree: DraftTree, decay: float) -> None:
        """Add one sequence's draft in one round; an empty one if its drafter proposed
        nothing.
        """
        self.rounds = decay * self.rounds + 1
        self.tokens = decay * self.tokens + sum(tree.probabilities)
        self.levels = decay * self.levels + max(tree.depths)
        self.counts = [decay * count for count in self.counts]
        for probability in tree.probabilities:
            self.counts[min(int(C.levels * probability), C.levels - 1)] += 1

    def relative_to(self, overall: PredictedGain) -> float:
        """Return the ratio of this sequence's expected accepted tokens to the overall
        mean, shrunk toward 1.
        """
        expected = overall.tokens / max(overall.rounds, 1e-9)
        return (
            (self.tokens + C.prior * expected) / ((self.rounds + C.prior) * expected)
            if expected
            else 1.0
        )


@dataclass(slots=True)
class BatchGain:
    """Costs of one round of `sequences` sequences that are all treated alike."""

    sequences: int
    costs: Costs
    plain_overhead: float
    """Seconds of verify and commit per sequence without draft tokens."""
    overhead: float
    """The same with them."""
    plain_seconds: float = field(init=False)
    """Seconds of the round without draft tokens."""

    def __post_init__(self) -> None:
        self.plain_seconds = (
            self.costs.seconds(self.sequences) + self.sequences * self.plain_overhead
        )

    @property
    def alone_seconds(self) -> float:
        """Seconds of a round of one sequence without draft tokens."""
        return self.costs.seconds(1) + self.plain_overhead

    @property
    def token_seconds(self) -> float:
        """Seconds that a token takes without draft tokens, which an accepted
        one saves.
        """
        return self.plain_seconds / self.sequences

    def added(self, drafting: DraftingCost, scored: float, drafted: float) -> float:
        """Return the extra seconds of the round per sequence, if each drafts
        `drafted` tokens and scores `scored`.

        Both are averages; the forward has whole rows.
        """
        more = self.costs.seconds(
            self.sequences + round(self.sequences * scored)
        ) - self.costs.seconds(self.sequences)
        drafting_seconds = drafting.seconds(self.sequences * drafted)
        return (
            max(more, 0.0) / self.sequences
            + self.overhead
            - self.plain_overhead
            + drafting_seconds / self.sequences
        )

    def never_pays(self, drafting: DraftingCost) -> bool:
        """Return whether draft tokens could not pay even if all were accepted, by the
        measured cost of drafting.
        """
        if not drafting.measured:
            return False
        now, token_seconds = self.costs.seconds(self.sequences), self.token_seconds
        for count in C.tries:
            scoring = max(self.costs.seconds(self.sequences + count) - now, 0.0)
            if count * token_seconds > scoring + drafting.seconds(
                count, 1.0 / self.sequences
            ):
                return False
        return True

    def best(
        self, drafting: DraftingCost, overall: PredictedGain, share: float
    ) -> tuple[float, float]:
        """Return tokens earned and extra seconds per sequence for the most profitable
        selection of draft tokens.

        The likeliest are taken first, as in `trim`; `share` calibrates stated
        probabilities.
        """
        plain_seconds = self.plain_seconds
        earned = 0.0
        scored = 0.0
        fastest = 0.0
        drafted = overall.levels / overall.rounds
        result = (0.0, self.added(drafting, 0.0, drafted))
        for level in range(C.levels - 1, -1, -1):
            count = overall.counts[level] / overall.rounds
            if not count:
                continue
            scored += count
            earned += share * count * (level + 0.5) / C.levels
            longer = self.added(drafting, scored, drafted)
            rate = (1.0 + earned) / (plain_seconds + self.sequences * longer)
            if rate > fastest:
                fastest, result = rate, (earned, longer)
        return result

    def best_chain(
        self, drafting: DraftingCost, reached: Iterable[float]
    ) -> tuple[int, float]:
        """Return the length of the chain that maximizes tokens per second, and the
        seconds that a sequence gains by it; `reached`: by depth, the probability that
        a chain is accepted so far.
        """
        best = 0
        gain = 0.0
        fastest = 1.0 / self.plain_seconds
        earned = 0.0
        for count, accepted in enumerate(reached, 1):
            earned += accepted
            longer = self.added(drafting, count, count)
            seconds = self.plain_seconds + self.sequences * longer
            rate = (1.0 + earned) / seconds
            if rate > fastest:
                best = count
                gain = earned * self.token_seconds - longer
                fastest = rate
        return best, gain
