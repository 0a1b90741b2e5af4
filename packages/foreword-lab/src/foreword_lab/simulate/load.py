"""Simulated loads: a trace, clients that wait for their answers, or random arrivals."""

from collections.abc import Sequence
from dataclasses import dataclass, fields
from pathlib import Path

import numpy as np

from foreword.errors import InvalidRequest
from foreword_lab.simulate.fields import (
    check_names,
    number,
    parsed,
    text_of,
    whole_number,
)

NEEDED = ("arrival", "prompt_tokens", "answer_tokens")
"""Fields of every line of a trace."""
PER_CLIENT = 4
"""Answers of each client, where the number of requests is not given."""
FEWEST = 256
"""Requests, where their number is not given: percentiles need some hundreds."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadRequest:
    """One request of a load. Raises InvalidRequest for numbers that no request has."""

    arrival: float
    """Seconds from the beginning; of clients that wait, 0."""
    prompt_tokens: int
    """Prompt tokens to read, without the tokens that a cache holds.
    """
    answer_tokens: int
    acceptance: float | None = None
    """Share of its draft tokens that are accepted; None: as the costs have it."""

    def check(self, where: str) -> None:
        """Raise InvalidRequest, which says `where`, for numbers out of range."""
        number("arrival", self.arrival, where)
        whole_number("prompt_tokens", self.prompt_tokens, where)
        whole_number("answer_tokens", self.answer_tokens, where)
        if self.acceptance is not None:
            number("acceptance", self.acceptance, where, high=1.0)


@dataclass(frozen=True, slots=True)
class Load:
    """Requests, in any order."""

    requests: Sequence[LoadRequest]
    clients: int | None = None
    """Clients that each send a request when their last one has ended; None: requests
    arrive when they say.
    """
    seed: int = 0
    """Seed of the tokens of each round."""


@dataclass(frozen=True, slots=True)
class Lengths:
    """Numbers of tokens, all of them equally likely."""

    low: int
    high: int

    @classmethod
    def read(cls, option: str, text: str) -> "Lengths":
        """Return lengths such as 64 or 32-128. InvalidRequest names the option."""
        low, dash, high = text.partition("-")
        high = high if dash else low
        ends = (low.strip(), high.strip())
        if all(map(str.isdecimal, ends)) and 1 <= int(low) <= int(high):
            return cls(int(low), int(high))
        raise InvalidRequest(
            f"cannot read {option} {text!r}: it is not a number of tokens. Give one "
            "from 1 on, as 64, or two, as 32-128"
        )

    def draw(self, count: int, generator: np.random.Generator) -> list[int]:
        """Return so many lengths."""
        drawn = generator.integers(self.low, self.high, count, endpoint=True)
        return drawn.tolist()


def trace(file: Path, seed: int = 0) -> Load:
    """Return the requests of a file of JSON lines, in any order.

    Raises InvalidRequest, which names the line, for one that cannot be sent.
    """
    lines = text_of(file).splitlines()
    requests = [
        _request(line, f"line {at} of {file}")
        for at, line in enumerate(lines, 1)
        if line.strip()
    ]
    if not requests:
        raise InvalidRequest(
            f"cannot simulate {file}: it is empty. Write a request a line: "
            '{"arrival": 0.5, "prompt_tokens": 64, "answer_tokens": 32}'
        )
    return Load(requests, seed=seed)


def _request(line: str, where: str) -> LoadRequest:
    values = parsed(line, where)
    known = [one.name for one in fields(LoadRequest)]
    check_names(values, known, NEEDED, where)
    request = LoadRequest(**values)
    request.check(where)
    return request


def waiting_clients(
    clients: int,
    prompts: Lengths,
    answers: Lengths,
    count: int | None = None,
    seed: int = 0,
) -> Load:
    """Return the load of clients that each wait for an answer before they send the
    next request; all of them begin at once.
    """
    count = count or max(FEWEST, PER_CLIENT * clients)
    arrivals = [0.0] * count
    requests = _drawn(arrivals, prompts, answers, seed)
    return Load(requests, clients, seed)


def poisson_arrivals(
    rate: float,
    prompts: Lengths,
    answers: Lengths,
    count: int | None = None,
    seed: int = 0,
) -> Load:
    """Return a load of `rate` requests a second that do not wait for each other: the
    time to the next one is exponential (Poisson arrivals).
    """
    generator = np.random.default_rng([seed, 1])
    gaps = generator.exponential(1 / rate, count or FEWEST)
    arrivals = np.cumsum(gaps).tolist()
    return Load(_drawn(arrivals, prompts, answers, seed), seed=seed)


def _drawn(
    arrivals: Sequence[float], prompts: Lengths, answers: Lengths, seed: int
) -> list[LoadRequest]:
    """Return requests of drawn lengths."""
    generator = np.random.default_rng([seed, 2])
    read = prompts.draw(len(arrivals), generator)
    written = answers.draw(len(arrivals), generator)
    return [
        LoadRequest(arrival=arrival, prompt_tokens=prompt, answer_tokens=answer)
        for arrival, prompt, answer in zip(arrivals, read, written, strict=True)
    ]
