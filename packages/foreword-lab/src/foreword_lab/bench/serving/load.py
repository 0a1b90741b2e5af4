"""Load generator: sends requests at a fixed concurrency and times each answer."""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from time import perf_counter

from foreword_lab.bench.records import BenchRequest


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """One answer and its times, in seconds by perf_counter()."""

    started: float
    first: float
    """When the first text arrived."""
    last: float
    """When the last text arrived."""
    text: str
    tokens: int
    """Tokens as the server counts them: an event of a stream may hold several."""
    cached: int = 0
    """Prompt tokens that the server did not read again."""
    gap: float = 0.0
    """Seconds. Longest time between two texts."""
    accepted: int = 0
    """Draft tokens accepted, where the server reports them."""

    @property
    def first_token(self) -> float:
        """Seconds until the first token."""
        return self.first - self.started

    @property
    def per_token(self) -> float | None:
        """Seconds per token after the first; None for answers of one token."""
        return (self.last - self.first) / (self.tokens - 1) if self.tokens > 1 else None


Ask = Callable[[BenchRequest, str], Awaitable[Answer]]
"""Answers one request of a tenant. Raises if it cannot."""


@dataclass(frozen=True, slots=True)
class Load:
    """All answers of one server at one concurrency."""

    seconds: float
    """From the first request to the last answer."""
    answers: tuple[Answer | None, ...]
    """In the order of the requests; None for one that failed."""
    failures: tuple[str, ...] = field(default=())
    """Reason of each failure."""

    @property
    def tokens_per_second(self) -> float:
        """Tokens of all answers over the time of all; 0 where all failed."""
        return sum(one.tokens for one in self.answers if one is not None) / self.seconds

    @property
    def texts(self) -> list[str | None]:
        """The text of each answer; None for one that failed."""
        return [None if one is None else one.text for one in self.answers]


def longest(times: Sequence[float]) -> float:
    """Return the longest time between two neighbours; 0 for fewer than two."""
    return max((after - before for before, after in pairwise(times)), default=0.0)


async def send(
    ask: Ask, requests: Sequence[BenchRequest], concurrency: int, tenant: str
) -> Load:
    """Send all, `concurrency` at a time; count failures."""
    waiting = iter(enumerate(requests))
    answers: list[Answer | None] = [None] * len(requests)
    failures: list[str] = []

    async def client() -> None:
        for number, request in waiting:
            try:
                answers[number] = await ask(request, tenant)
            except Exception as error:  # noqa: BLE001 - a failure is a result
                failures.append(f"{type(error).__name__}: {error}")

    began = perf_counter()
    await asyncio.gather(*(client() for _ in range(concurrency)))
    return Load(perf_counter() - began, tuple(answers), tuple(failures))
