"""Time and acceptance statistics of rounds and completions."""

from bisect import bisect_left
from dataclasses import dataclass, field
from itertools import pairwise

from foreword.types.round import Reason

__all__ = ["Clock", "Load", "Moments", "Stats", "Tally"]


@dataclass(slots=True)
class Clock:
    """Seconds of one round, by step."""

    propose: float = 0.0
    score: float = 0.0
    verify: float = 0.0
    commit: float = 0.0

    @property
    def total(self) -> float:
        """Seconds of all four steps."""
        return self.propose + self.score + self.verify + self.commit


@dataclass(slots=True)
class Stats:
    """Statistics of one completion, in seconds of the rounds it took part in."""

    rounds: int = 0
    """Rounds that emitted tokens (prefill rounds that only read do not count)."""
    drafted: int = 0
    """Draft tokens that the target scored."""
    accepted: int = 0
    """Draft tokens accepted, before any cut at a stop string or limit."""
    drafted_at: list[int] = field(default_factory=list)
    """Entry i: rounds in which a draft token of depth i + 1 was scored."""
    accepted_at: list[int] = field(default_factory=list)
    """Entry i: rounds in which a draft token of depth i + 1 was accepted."""
    tokens: int = 0
    """Tokens emitted."""
    cached: int = 0
    """Prompt tokens that were not read, because an earlier text began with them."""
    propose: float = 0.0
    score: float = 0.0
    verify: float = 0.0
    commit: float = 0.0
    prefill: float = 0.0
    """Seconds of rounds that only read the prompt, all steps together."""
    prefill_tokens: int = 0
    """Tokens read in those rounds."""
    undrafted: dict[Reason, int] = field(default_factory=dict)
    """Rounds in which nothing was drafted, by reason."""
    by_method: dict[str, int] = field(default_factory=dict)
    """Tokens by the method in use, before any cut; empty with only one method."""

    def read(self, clock: Clock, tokens: int) -> None:
        """Count one round that only read prompt tokens."""
        self.prefill += clock.total
        self.prefill_tokens += tokens

    def add(
        self,
        clock: Clock,
        drafted: int,
        accepted: int,
        depth: int | None = None,
        reason: Reason | None = None,
    ) -> None:
        """Count a round that emitted tokens; `reason`: why it had no draft."""
        depth = drafted if depth is None else depth
        self.rounds += 1
        if reason:
            self.undrafted[reason] = self.undrafted.get(reason, 0) + 1
        self.drafted += drafted
        self.accepted += accepted
        self.propose += clock.propose
        self.score += clock.score
        self.verify += clock.verify
        self.commit += clock.commit
        for counts in (self.drafted_at, self.accepted_at):
            counts.extend([0] * (depth - len(counts)))
        for level in range(depth):
            self.drafted_at[level] += 1
            self.accepted_at[level] += level < accepted

    @property
    def drafting_rounds(self) -> int:
        """Rounds in which at least one draft token was scored."""
        return self.drafted_at[0] if self.drafted_at else 0

    @property
    def accepted_counts(self) -> list[int]:
        """Entry i: drafting rounds in which exactly i draft tokens were accepted."""
        if not self.drafting_rounds:
            return []
        at_least = [self.drafting_rounds, *self.accepted_at, 0]
        return [more - fewer for more, fewer in pairwise(at_least)]

    @property
    def tokens_per_pass(self) -> float:
        """Tokens emitted per target forward that emitted any."""
        return self.tokens / self.rounds if self.rounds else 0.0

    @property
    def acceptance(self) -> float:
        """Accepted share of the draft tokens; 0 if there were none."""
        return self.accepted / self.drafted if self.drafted else 0.0


@dataclass(slots=True)
class Moments:
    """When a sequence got on, by perf_counter(); None until then."""

    begun: float | None = None
    """When its first tokens were scheduled."""
    first: float | None = None
    """When its first tokens were committed."""
    last: float | None = None
    """When its last tokens were committed."""


@dataclass(slots=True)
class Tally:
    """Counts of values between bounds, and their sum: a histogram."""

    bounds: tuple[float, ...]
    """In ascending order; a value counts at the first that is not below it."""
    counts: list[int] = field(init=False)
    """One for each bound, and one for the values above all of them."""
    total: float = 0.0

    def __post_init__(self) -> None:
        self.counts = [0] * (len(self.bounds) + 1)

    def add(self, value: float) -> None:
        """Count one value."""
        self.counts[bisect_left(self.bounds, value)] += 1
        self.total += value


@dataclass(frozen=True, slots=True)
class Load:
    """State of an engine, for metrics; prefixes count from the target's start."""

    running: int
    """Sequences."""
    waiting: int
    """Sequences in the queue, preempted ones too."""
    preemptions: int
    """Times that a sequence gave its keys and values to others."""
    prefix_queries: int
    """Tokens of prompts and preempted texts that were looked up among earlier texts."""
    prefix_hits: int
    """Tokens of them that did not have to be read."""
    kv_used: int
    """Tokens. Keys and values that running sequences hold, in whole pages."""
    kv_held: int
    """Tokens. The same, and those kept for texts that begin alike."""
    kv_capacity: int | None
    """Tokens. Most that may be held; None = no limit."""
