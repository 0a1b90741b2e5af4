"""Penalties for repetition against the log-probabilities of greedy tokens."""

from collections import Counter
from collections.abc import (
    Mapping,
    Sequence,
)
from dataclasses import replace
from itertools import chain

from foreword_lab.certify.remote.ask import (
    ROUNDING,
    TOPICS,
    Scored,
    prompt,
    scored,
)
from foreword_lab.certify.remote.client import Server
from foreword_lab.certify.remote.greedy import behind
from foreword_lab.certify.remote.source import Source
from foreword_lab.certify.report import Check

TOKENS = 40
"""Tokens. Length of each answer: llama.cpp counts the last 64, prompt included."""
PRESENCE, FREQUENCY = 1.5, 0.5
"""Nats. Taken from a token that was written before, and for each time."""
PENALTIES = {"presence_penalty": PRESENCE, "frequency_penalty": FREQUENCY}


def penalty_check(server: Server, source: Source) -> Check:
    """Return whether every greedy token is the likeliest after its penalties.

    Drafting breaks them where it counts draft tokens that were refused, or leaves out
    accepted ones of the same round. Log-probabilities may be before penalties or after.
    Raises Unsupported if the server refuses penalties.
    """
    name = f"penalties are obeyed: {source.endpoint}"
    greedy = replace(source, temperature=0.0)
    plain = [greedy.asked(topic, 0, TOKENS) for topic in TOPICS]
    sent = [(path, {**body, **PENALTIES}) for path, body in plain]
    texts = [*map(scored, server.at_once(plain))]
    answers = [*map(scored, server.at_once(sent))]
    tokens = [token for token in chain(*answers) if token.top]
    before: list[float] = []
    for topic, answer in zip(TOPICS, answers, strict=True):
        before += margins(answer, prompt(topic))
    after = [behind(token) for token in tokens]
    faults = min(before, after, key=_faults)
    evidence = {
        "tokens": len(tokens),
        "log-probabilities are after penalties": faults is after,
        "not the likeliest": _faults(faults),
        "farthest, nats": round(max(faults, default=0.0), 3),
    }
    if not tokens:
        what = "there are no log-probabilities"
        return Check(name, "cannot say", what)
    if _names(texts) == _names(answers):
        what = "penalties change nothing"
        return Check(name, "cannot say", what, evidence)
    if _faults(faults):
        what = f"{_faults(faults)} of {len(tokens)} tokens are not the likeliest"
        return Check(name, "differs", what, evidence)
    what = f"{len(tokens)} tokens are the likeliest after their penalties"
    return Check(name, "consistent", what, evidence)


def margins(answer: Sequence[Scored], text: str) -> list[float]:
    """Return by how many nats each token is less likely than the likeliest, at least,
    after penalties that the stated log-probabilities do not have.

    A token that stands in the prompt `text` may have been counted there, or not.
    """
    distances = []
    counts = Counter[str]()
    for token in answer:
        if token.top:
            scores = [
                logprob - _penalty(counts, name, _count(text, name))
                for name, logprob in token.top
            ]
            taken = _penalty(counts, token.token, 0)
            score = token.known_logprob - taken
            distances.append(max(0.0, max(scores) - score))
        counts[token.token] += 1
    return distances


def _count(text: str, token: str) -> int:
    return text.count(token.strip() or token)


def _penalty(counts: Mapping[str, int], token: str, more: int) -> float:
    count = counts.get(token, 0) + more
    return (PRESENCE + FREQUENCY * count) if count else 0.0


def _faults(margins: Sequence[float]) -> int:
    return sum(margin > ROUNDING for margin in margins)


def _names(answers: Sequence[Sequence[Scored]]) -> list[list[str]]:
    return [[token.token for token in answer] for answer in answers]
