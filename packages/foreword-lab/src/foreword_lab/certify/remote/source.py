"""How a server is sampled from, by endpoint and temperature."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from foreword_lab.certify.remote.ask import (
    TOPICS,
    Endpoint,
    prompt,
    request,
    sampling,
    scored,
    with_logprobs,
)
from foreword_lab.certify.remote.client import Broken, Server, Unsupported

TOPS = (50, 20, 5)
"""Tokens. Likeliest ones to ask for: the first number that the server accepts."""
COOL = 0.7
"""Temperature at which it shows whether log-probabilities are those before it."""
ALIKE = 0.05
"""Nats. Log-probabilities that differ less do not depend on the temperature."""
KINDS: tuple[tuple[Endpoint, float], ...] = (
    ("chat", 1.0),
    ("completions", 1.0),
    ("chat", 0.7),
    ("chat", 1.3),
)
"""(endpoint, temperature) of each source."""
NEUTRAL: tuple[Mapping[str, object], ...] = (
    {"top_k": -1, "min_p": 0, "repetition_penalty": 1.0},
    {"top_k": -1, "min_p": 0},
    {"top_k": 0, "min_p": 0},
    {},
)
"""Ways to turn off filters that a server may have by default; the first one that it
accepts is used.
"""


@dataclass(frozen=True, slots=True)
class Source:
    """How one endpoint is sampled from at one temperature."""

    endpoint: Endpoint
    temperature: float
    top: int
    """Tokens listed at each place."""
    neutral: Mapping[str, object]
    is_raw: bool
    """Whether log-probabilities are those before the temperature."""

    @property
    def name(self) -> str:
        """Name in the report."""
        return f"{self.endpoint}, temperature {self.temperature:g}"

    @property
    def exponent(self) -> float:
        """Power of the stated probabilities that is to be sampled."""
        return 1 / self.temperature if self.is_raw else 1.0

    def asked(self, topic: str, seed: int, tokens: int) -> tuple[str, dict[str, Any]]:
        """Return the request for a text."""
        return request(
            self.endpoint,
            prompt(topic),
            **sampling(seed, self.temperature, tokens),
            top_p=1.0,
            **self.neutral,
            **with_logprobs(self.endpoint, self.top),
        )


def sources(server: Server, seed: int, *, quick: bool) -> list[Source]:
    """Return the sources of a server; none without log-probabilities."""
    probed = {
        endpoint: _probed(server, endpoint, seed)
        for endpoint in ("chat", "completions")
    }
    every = []
    for endpoint, temperature in KINDS:
        source = probed[endpoint]
        if source is not None:
            every.append(replace(source, temperature=temperature))
    return every[:1] if quick else every


def _probed(server: Server, endpoint: Endpoint, seed: int) -> Source | None:
    for neutral in NEUTRAL:
        for top in TOPS:
            source = Source(endpoint, 1.0, top, dict(neutral), is_raw=False)
            try:
                warm = _first(server, source, seed)
                cool = _first(server, replace(source, temperature=COOL), seed)
                # of a greedy token, that is listed anyway, none is added to the list
                greedy = _first(server, replace(source, temperature=0.0), seed)
            except Unsupported:
                continue
            except Broken:
                return None
            if not (warm and cool and greedy):
                return None
            length = min(top, len(greedy))
            return replace(source, top=length, is_raw=_are_raw(warm, cool))
    return None


def _first(server: Server, source: Source, seed: int) -> dict[str, float]:
    """Return the likeliest first tokens and their log-probabilities."""
    tokens = scored(server.post(*source.asked(TOPICS[0], seed, 1)))
    return dict(tokens[0].top) if tokens else {}


def _are_raw(warm: Mapping[str, float], cool: Mapping[str, float]) -> bool:
    """Return whether the temperature changes no log-probability, but by rounding: their
    differences from each other are nearer to equal than to those divided by it.
    """
    shared = [token for token in warm if token in cool]
    first, second = (np.array([one[token] for token in shared]) for one in (warm, cool))
    if len(shared) < 2 or not np.ptp(first):
        return bool(np.all(np.abs(first - second) < ALIKE))
    slope = np.polyfit(first, second, 1)[0]
    return bool(slope < (1 + 1 / COOL) / 2)
