"""Sampled tokens against the server's own distribution at the requested temperature."""

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import count
from random import Random

from foreword_lab.bench.stats import LEVEL, Fit, confirmed, fit, homogeneity
from foreword_lab.certify.clock import Clock
from foreword_lab.certify.remote.ask import (
    TOPICS,
    Endpoint,
    Scored,
    prompt,
    request,
    scored,
    text_of,
    with_logprobs,
)
from foreword_lab.certify.remote.client import Server, Unsupported
from foreword_lab.certify.remote.same_text import Sent, accepted, without_drafting
from foreword_lab.certify.report import Check

BINS = 10
"""Cells of the test."""
TOKENS = 16
"""Tokens. Length of each sampled text: later ones may have been drafted."""
BATCH = 8
"""Requests. Sent at once."""
TOP = 20
"""Tokens. Likeliest ones asked for at each place: the most of OpenAI's API."""
LEAST, MOST = 320, 20_000
"""Tokens. Samples of each temperature."""
SECOND = 2**20
"""Distance of the seeds of samples that are drawn again."""
WORDS = 160
"""Requests. Samples of a first word with drafting, and as many without."""
TEMPERATURES = (0.7, 1.0, 1.3)
NEUTRAL = ({"top_k": -1, "min_p": 0}, {"top_k": 0, "min_p": 0}, {})
"""Ways to turn off filters that a server may have by default; the first one that it
accepts is used.
"""
ALIKE = 0.05
"""Nats. Log-probabilities that differ less, whatever the temperature, are those before
it.
"""


@dataclass(frozen=True, slots=True)
class Source:
    """How one server is sampled from."""

    server: Server
    endpoint: Endpoint
    seed: int
    neutral: dict[str, object]
    is_raw: bool
    """Whether log-probabilities are those before the temperature."""
    until: float
    """Share of the time after which it ends."""


def temperature_check(
    server: Server,
    endpoint: Endpoint,
    temperature: float,
    *,
    seed: int,
    clock: Clock,
    until: float = 1.0,
) -> Check:
    """Return whether tokens are as likely as the log-probabilities say.

    A token's place in its distribution, likeliest first, is uniform on [0, 1] if and
    only if the server samples from it; the test is on the likeliest TOP tokens.
    """
    name = f"sampled distribution: {endpoint}, temperature {temperature:g}"
    source = _source(server, endpoint, seed, until)
    if source is None:
        return _against_plain(name, server, endpoint, temperature, seed)
    first, again = confirmed(
        lambda turn: _fit(source, temperature, clock, turn * SECOND)
    )
    evidence = {
        "tokens": first.samples,
        "p-value": first.p_value,
        "p-value of new samples": None if again is None else again.p_value,
        "detected total variation": first.detects,
        "log-probabilities": "before" if source.is_raw else "after",
    }
    return _verdict(name, first, again, evidence)


def _verdict(
    name: str, first: Fit, again: Fit | None, evidence: dict[str, object]
) -> Check:
    if again is not None and again.p_value < LEVEL:
        what = f"{first.samples:,} tokens have another distribution"
        return Check(name, "failed", f"{what}: p {again.p_value:.1g}", evidence)
    if first.cells < 2:
        return Check(name, "proves nothing", "there is one likely token only", evidence)
    what = (
        f"{first.samples:,} tokens fit; a total variation of {first.detects:.3f} is "
        "found with probability 0.9"
    )
    return Check(name, "passed", what, evidence)


def _source(
    server: Server, endpoint: Endpoint, seed: int, until: float
) -> Source | None:
    """Return how to sample; None where there are no log-probabilities."""
    for neutral in NEUTRAL:
        try:
            rows = [
                _top(server, endpoint, heat, seed, neutral)
                for heat in (1.0, TEMPERATURES[0])
            ]
        except Unsupported:
            continue
        if not all(rows):
            return None
        is_raw = _is_raw(*rows)
        return Source(server, endpoint, seed, dict(neutral), is_raw, until)
    return None


def _top(
    server: Server,
    endpoint: Endpoint,
    temperature: float,
    seed: int,
    neutral: Mapping[str, object],
) -> dict[str, float]:
    """Return the likeliest first tokens, and their log-probabilities."""
    parameters = {**_sampling(seed, temperature, 1), **neutral}
    query = request(
        endpoint, prompt(TOPICS[0]), **parameters, **with_logprobs(endpoint, TOP)
    )
    tokens = scored(server.post(*query))
    return dict(tokens[0].top) if tokens else {}


def _is_raw(warm: dict[str, float], cold: dict[str, float]) -> bool:
    """Return whether the temperature changed no log-probability."""
    shared = [token for token in warm if token in cold]
    return all(abs(warm[token] - cold[token]) < ALIKE for token in shared)


def _fit(source: Source, temperature: float, clock: Clock, start: int) -> Fit:
    """Sample texts until there are enough tokens, and test their places."""
    dice = Random(source.seed + start)
    heat = temperature if source.is_raw else 1.0
    counts = [0] * BINS
    for batch in count():
        drawn = sum(counts)
        # texts that end at once may never give enough
        is_short = drawn < LEAST and batch < LEAST // 2
        if not (is_short or (drawn < MOST and clock.before(source.until))):
            break
        clock.tell(f"samples at temperature {temperature:g}, {drawn:,} tokens")
        for token in _batch(source, temperature, start + BATCH * batch):
            quantile = position(token, heat, dice)
            if quantile is not None:
                counts[min(BINS - 1, int(quantile * BINS))] += 1
    return fit(counts, [sum(counts) / BINS] * BINS)


def _batch(source: Source, temperature: float, first: int) -> list[Scored]:
    sent = []
    for index in range(BATCH):
        seed = source.seed + first + index
        text = prompt(TOPICS[index % len(TOPICS)])
        parameters = _sampling(seed, temperature, TOKENS) | source.neutral
        more = with_logprobs(source.endpoint, TOP)
        sent.append(request(source.endpoint, text, **parameters, **more))
    answers = source.server.at_once(sent)
    return [token for answer in answers for token in scored(answer)]


def position(entry: Scored, temperature: float, dice: Random) -> float | None:
    """Return where a token lies in the distribution of the likeliest tokens; None for
    another token, or where there is one only.

    Uniform on [0, 1] if the token was sampled from it.
    """
    # some servers add the sampled token to the likeliest ones
    top = entry.top[: _asked(entry)]
    if len(top) < 2 or entry.token not in dict(top):
        return None
    best = top[0][1]
    weights = [math.exp((score - best) / temperature) for _, score in top]
    index = [token for token, _ in top].index(entry.token)
    before = sum(weights[:index]) + dice.random() * weights[index]
    return before / sum(weights)


def _asked(entry: Scored) -> int:
    return 5 if len(entry.top) in (5, 6) else TOP


def _against_plain(
    name: str, server: Server, endpoint: Endpoint, temperature: float, seed: int
) -> Check:
    """Compare first words with and without drafting.

    Raises Unsupported where drafting cannot be turned off.
    """

    def compare(start: int) -> Fit:
        rows = []
        for is_plain in (False, True):
            first = start + is_plain * WORDS
            sent = _words_asked(endpoint, first, temperature, is_plain=is_plain)
            rows.append(Counter(_first_words(server, sent)))
        cells = [*(rows[0] | rows[1])]
        return homogeneity(*([row[cell] for cell in cells] for row in rows))

    accepted(server.post(*_words_asked(endpoint, seed, temperature, is_plain=True)[0]))
    first, again = confirmed(lambda turn: compare(seed + turn * SECOND))
    evidence = {"samples": 2 * WORDS, "p-value": first.p_value}
    return _verdict(name, first, again, evidence)


def _words_asked(
    endpoint: Endpoint, first: int, temperature: float, *, is_plain: bool
) -> list[Sent]:
    """Return WORDS requests for a first word, with seeds of their own."""
    sent = []
    for seed in range(first, first + WORDS):
        # a word may have several tokens
        parameters = _sampling(seed, temperature, 3)
        query = request(endpoint, prompt(TOPICS[0]), **parameters)
        sent.append(without_drafting(query) if is_plain else query)
    return sent


def _first_words(server: Server, sent: Sequence[Sent]) -> list[str]:
    """Return the first word of each answer, cut off if it is long."""
    words = []
    for start in range(0, len(sent), BATCH):
        answers = server.at_once(sent[start : start + BATCH])
        words += [text_of(one).split()[:1] for one in answers]
    return ["".join(word) for word in words]


def _sampling(seed: int, temperature: float, tokens: int) -> dict[str, object]:
    return {
        "seed": seed,
        "temperature": temperature,
        "top_p": 1.0,
        "max_tokens": tokens,
    }
