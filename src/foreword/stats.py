"""What rounds cost and what guesses earned, counted.

Knows numbers; knows nothing about tokens, models or methods.
"""

from __future__ import annotations

from dataclasses import dataclass, field

__all__ = ["Clock", "Stats"]


@dataclass(slots=True)
class Clock:
    """Seconds of one round, step by step."""

    guess: float = 0.0
    score: float = 0.0
    decide: float = 0.0
    keep: float = 0.0

    @property
    def total(self) -> float:
        return self.guess + self.score + self.decide + self.keep


@dataclass(slots=True)
class Stats:
    """What one completion cost and earned. Times are seconds of the rounds this sequence took part in."""

    rounds: int = 0
    """Rounds that wrote at least one token (prefill rounds that only read are not counted)."""
    drafted: int = 0
    """Guesses that the target scored."""
    accepted: int = 0
    """Guesses that were kept, before any cut by a stop rule."""
    drafted_at: list[int] = field(default_factory=list)
    """Rounds in which a guess of depth i + 1 was scored."""
    accepted_at: list[int] = field(default_factory=list)
    """Rounds in which a guess of depth i + 1 was kept."""
    tokens: int = 0
    """Tokens written."""
    guess: float = 0.0
    score: float = 0.0
    decide: float = 0.0
    keep: float = 0.0
    prefill: float = 0.0
    """Seconds of rounds that only read the prompt, all steps together."""

    def add(self, clock: Clock, drafted: int, accepted: int, depth: int | None = None) -> None:
        """Count one round that wrote; its guesses reached `depth` tokens ahead (None: they were a chain)."""
        depth = drafted if depth is None else depth
        self.rounds += 1
        self.drafted += drafted
        self.accepted += accepted
        self.guess += clock.guess
        self.score += clock.score
        self.decide += clock.decide
        self.keep += clock.keep
        for counts in (self.drafted_at, self.accepted_at):
            counts.extend([0] * (depth - len(counts)))
        for place in range(depth):
            self.drafted_at[place] += 1
            self.accepted_at[place] += place < accepted

    @property
    def tokens_per_pass(self) -> float:
        """Tokens written per target pass that wrote any."""
        return self.tokens / self.rounds if self.rounds else 0.0

    @property
    def acceptance(self) -> float:
        """Share of the guesses that were kept; 0 where nothing was guessed."""
        return self.accepted / self.drafted if self.drafted else 0.0
