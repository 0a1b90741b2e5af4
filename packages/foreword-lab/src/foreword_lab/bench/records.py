"""Data types of a measurement: the request, the rounds and result of one run, and the
interface of an entry.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Protocol, runtime_checkable

import numpy as np

from foreword.errors import ForewordError
from foreword.types import Clock
from foreword_lab.bench.stats import Costs


class EntryFailed(ForewordError):
    """An entry that cannot be measured: its drafter failed, or it answers otherwise."""


@dataclass(frozen=True, slots=True)
class BenchRequest:
    """One prompt and its sampling parameters, the same for every entry."""

    name: str
    """The prompt's id, such as "gsm8k/9"."""
    prompt: tuple[int, ...]
    """Token ids before the answer."""
    temperature: float
    seed: int
    max_tokens: int


@dataclass(frozen=True, slots=True)
class Round:
    """One round of one sequence. Times are seconds."""

    tokens: int
    """Emitted in this round."""
    drafted: int
    accepted: int
    seconds: float
    """The whole round; of an entry with bookkeeping, else the four steps."""
    clock: Clock
    """Times of the four steps."""
    target: float = 0.0
    """Inside forwards of the target; 0 where they are not timed."""
    draft: float = 0.0
    """Inside forwards of a draft model, likewise."""
    reading: bool = False
    """Whether the prompt was read in this round: no sample of steady decoding."""
    predicted: float | None = None
    """Tokens that the draft tokens' probabilities predict; None where nothing was
    drafted, or without probabilities.
    """
    speeds: Mapping[str, float] = field(default_factory=dict)
    """By method: tokens expected in the time of a plain round, where one is chosen."""

    @property
    def verified(self) -> int:
        """Draft tokens that were verified: those after a rejected one are not."""
        return min(self.drafted, self.accepted + 1)


@dataclass(frozen=True, slots=True)
class Trial:
    """Result of one run of one request."""

    tokens: list[int]
    """Emitted tokens, including an end-of-text token."""
    seconds: float
    """From the prompt's ids to the last token, prefill included."""
    passes: int | None
    """Forwards of the target; None where they cannot be counted."""
    rounds: tuple[Round, ...] = ()
    """Empty for baselines, whose rounds are not visible."""
    disk: int | None = None
    """Bytes read from disk; None where the system or the entry does not tell."""
    first: float | None = None
    """Seconds to the first token; None where they are not visible."""
    by_method: Mapping[str, int] = field(default_factory=dict)
    """Tokens by the method that wrote them, of an entry that chooses among several."""

    @property
    def decoding(self) -> tuple[int, float]:
        """Tokens after the prompt was read, and their seconds; 0 where not visible."""
        if self.first is None:
            return 0, 0.0
        if not self.rounds:
            return len(self.tokens) - 1, self.seconds - self.first
        rounds = [one for one in self.rounds if not one.reading]
        return sum(one.tokens for one in rounds), sum(one.seconds for one in rounds)


@runtime_checkable
class Entry(Protocol):
    """Interface of a benchmark entry: it answers requests and is timed."""

    @property
    def name(self) -> str:
        """The name of its row."""
        ...

    def run(self, request: BenchRequest) -> Trial:
        """Answer one request."""
        ...


def costs_of(trials: dict[str, list[Trial]], source: str | None = None) -> Costs:
    """Return tokens and seconds per prompt, of one source or of all, in the same order
    for every entry, so that ratios are paired.
    """
    sums = [
        (sum(len(t.tokens) for t in trials[p]), sum(t.seconds for t in trials[p]))
        for p in sorted(trials)
        if source in (None, source_of(p))
    ]
    return np.array(sums, dtype=np.float64)


Results = dict[tuple[str, float], dict[str, list[Trial]]]
"""(entry, temperature) -> prompt -> its trials."""


def source_of(prompt: str) -> str:
    """Return the source of a prompt, by its id: its kind."""
    return prompt.partition("/")[0]
