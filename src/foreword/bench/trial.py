"""The words of a measurement: what is asked of every contender, and what one attempt cost and earned.

Knows tokens and seconds; knows nothing about models or statistics.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol, runtime_checkable

from foreword.types import Clock


@dataclass(frozen=True, slots=True)
class Request:
    """One prompt as every contender gets it."""

    name: str
    """The prompt's id, such as "gsm8k/9"."""
    prompt: tuple[int, ...]
    """Token ids up to where the answer begins."""
    temperature: float
    seed: int
    max_tokens: int


@dataclass(frozen=True, slots=True)
class Round:
    """One round of the engine. Times are seconds."""

    tokens: int
    """Written in this round."""
    drafted: int
    accepted: int
    seconds: float
    """All of the round, bookkeeping included."""
    clock: Clock
    """Its four steps."""
    target: float
    """Inside forwards of the target."""
    draft: float
    """Inside forwards of a draft model."""
    reading: bool
    """The prompt was read in this round, so it is no sample of steady decoding."""

    @property
    def judged(self) -> int:
        """Guesses that were looked at: one that follows a rejected guess is not."""
        return min(self.drafted, self.accepted + 1)


@dataclass(frozen=True, slots=True)
class Trial:
    """One request answered once."""

    tokens: list[int]
    """Written; an end-of-text token counts."""
    seconds: float
    """From token ids to the last token id, the reading of the prompt included."""
    passes: int | None
    """Forwards of the target; None where they cannot be counted."""
    rounds: tuple[Round, ...] = ()
    """Empty where the insides cannot be seen."""


@runtime_checkable
class Contender(Protocol):
    """Whatever answers requests and can be timed."""

    @property
    def name(self) -> str:
        """The name of its row."""
        ...

    def run(self, request: Request) -> Trial:
        """Answer one request."""
        ...
