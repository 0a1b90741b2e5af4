"""Greedy tokens against their own log-probabilities."""

from dataclasses import replace

from foreword_lab.certify.remote.ask import (
    ROUNDING,
    TOPICS,
    Scored,
    scored,
)
from foreword_lab.certify.remote.client import Server
from foreword_lab.certify.remote.sampled import COARSE
from foreword_lab.certify.remote.source import Source
from foreword_lab.certify.report import Check

TOKENS = 24
"""Tokens. Length of each answer."""
SHOWN = 5
"""Faults that a report lists."""


def greedy_check(server: Server, source: Source) -> Check:
    """Return whether every greedy token is the likeliest of its place.

    A token that is less likely by more than rounding was accepted without being the
    target's ("relaxed acceptance").
    """
    name = f"greedy tokens are the likeliest: {source.endpoint}"
    greedy = replace(source, temperature=0.0)
    sent = [greedy.asked(topic, 0, TOKENS) for topic in TOPICS]
    answers = server.at_once(sent)
    drawn = [token for answer in answers for token in scored(answer)]
    tokens = [token for token in drawn if token.top]
    margins = [(behind(token), token) for token in tokens]
    other = [pair for pair in margins if pair[0] > 0]
    faults = [(margin, token) for margin, token in other if margin > ROUNDING]
    worst = sorted(other, key=lambda pair: -pair[0])[:SHOWN]
    unlisted = len(drawn) - len(tokens)
    evidence = {
        "tokens": len(tokens),
        "without log-probabilities": unlisted,
        "not the likeliest": len(other),
        "by more than rounding": len(faults),
        "farthest": [
            {"nats": round(margin, 3), "token": token.token, "likeliest": token.top[0]}
            for margin, token in worst
        ],
    }
    if not tokens:
        return Check(name, "cannot say", "there are no log-probabilities")
    if faults:
        what = (
            f"{len(faults)} of {len(tokens)} tokens are not the likeliest, by up to "
            f"{worst[0][0]:.2f} nats"
        )
        return Check(name, "differs", what, evidence)
    if unlisted > COARSE * len(drawn):
        what = f"{unlisted} of {len(drawn)} tokens have no log-probabilities"
        return Check(name, "cannot say", what, evidence)
    if other:
        what = f"{len(other)} of {len(tokens)} tokens are not, all within rounding"
        return Check(name, "numerics", what, evidence)
    return Check(name, "consistent", f"{len(tokens)} tokens are", evidence)


def behind(token: Scored) -> float:
    """Return by how many nats a token is less likely than the likeliest."""
    return token.top[0][1] - token.known_logprob
