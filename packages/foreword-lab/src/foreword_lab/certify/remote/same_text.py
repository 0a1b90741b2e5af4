"""The same request twice: alone, beside others, after another prompt, and without
drafting.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from foreword.registry import PLAIN
from foreword_lab.certify.remote.ask import (
    ROUNDING,
    TOPICS,
    Endpoint,
    margin,
    prompt,
    request,
    text_of,
)
from foreword_lab.certify.remote.client import Body, Broken, Server, Unsupported
from foreword_lab.certify.report import Check

TOKENS = 24
"""Tokens. Length of each answer."""
BESIDE = 8
"""Requests. Sent at once."""
SHOWN = 3
"""Differences that a report lists."""
PREFIX = "The archive keeps letters, maps and lists of ships. " * 12
"""Beginning that two prompts share: longer than a block of usual caches."""

Sent = tuple[str, Body]


@dataclass(frozen=True, slots=True)
class Pair:
    """A request and the two texts that answered it."""

    sent: Sent
    first: str
    second: str

    @property
    def differs(self) -> bool:
        """Whether the texts differ."""
        return self.first != self.second

    def as_json(self) -> dict[str, Any]:
        """Return plain values."""
        return {
            "request": dict(self.sent[1]),
            "first": self.first,
            "second": self.second,
        }


def seed_check(server: Server, endpoint: Endpoint, seeds: Sequence[int]) -> Check:
    """Return whether a seed gives one text, and other seeds other texts."""
    name = f"the seed is honoured: {endpoint}"
    topic = TOPICS[0]
    sent = [_sampled(endpoint, topic, seed) for seed in seeds]
    first = _texts(server, sent)
    pairs = _paired(sent, first, _texts(server, sent))
    if not any(pair.differs for pair in pairs) and len({*first}) == 1:
        what = f"{len(seeds)} seeds gave one and the same text"
        return Check(name, "proves nothing", what, {"text": first[0]})
    return _verdict(name, server, pairs, "asked twice, one after the other")


def beside_check(server: Server, endpoint: Endpoint, temperature: float) -> Check:
    """Return whether requests give the same text alone and beside each other."""
    kind = "greedy" if temperature == 0 else f"temperature {temperature:g}"
    name = f"same text beside other requests: {endpoint}, {kind}"
    sent = [
        _sampled(endpoint, topic, seed, temperature)
        for seed, topic in enumerate(TOPICS[:BESIDE])
    ]
    alone = _texts(server, sent)
    if alone != _texts(server, sent):
        what = "the texts already differ without other requests"
        return Check(name, "proves nothing", what)
    together = [text_of(one) for one in server.at_once(sent)]
    pairs = _paired(sent, alone, together)
    return _verdict(name, server, pairs, f"alone and {BESIDE} at once")


def prefix_check(server: Server, endpoint: Endpoint, label: int) -> Check:
    """Return whether a prompt gives the same text before and after another one that
    begins alike: A, B, A, B.
    """
    name = f"same text after another prompt, A B A: {endpoint}"
    sent = []
    for index, temperature in enumerate((0.0, 1.0)):
        start = f"Shelf {label} {index}. {PREFIX}"
        for topic in TOPICS[:2]:
            text = start + prompt(topic)
            parameters = _parameters(index, temperature)
            sent.append(request(endpoint, text, **parameters))
    pairs = []
    for both in (sent[:2], sent[2:]):
        before = _texts(server, both)
        pairs += _paired(both, before, _texts(server, both))
    return _verdict(name, server, pairs, "before and after another prompt")


def drafting_check(server: Server, endpoint: Endpoint, seeds: Sequence[int]) -> Check:
    """Return whether a request gives the same text with drafting turned off.

    Raises Unsupported where an answer does not count its draft tokens.
    """
    name = f"same text without drafting: {endpoint}"
    sent = [
        _sampled(endpoint, TOPICS[index % len(TOPICS)], seed, index % 2)
        for index, seed in enumerate(seeds)
    ]
    with_drafts = [server.post(*one) for one in sent]
    plain = [server.post(*without_drafting(one)) for one in sent]
    drafted = sum(map(accepted, with_drafts))
    if any(map(accepted, plain)):
        raise Broken("draft tokens were accepted although drafting was off")
    if not drafted:
        what = "no draft token was accepted"
        return Check(name, "proves nothing", what)
    texts = [[*map(text_of, answers)] for answers in (with_drafts, plain)]
    pairs = _paired(sent, *texts)
    return _verdict(name, server, pairs, f"with {drafted} draft tokens and with none")


def without_drafting(sent: Sent) -> Sent:
    """Return the request with drafting turned off."""
    path, body = sent
    return path, {**body, "speculative": {"method": PLAIN}}


def accepted(answer: Any) -> int:
    """Return the accepted draft tokens of an answer. Raises Unsupported where it does
    not count them.
    """
    try:
        counted = answer["metrics"]["speculative_decoding"]
        return int(counted["num_accepted_draft_tokens"])
    except (LookupError, TypeError) as error:
        raise Unsupported(
            "answers do not count their draft tokens, so nothing says that drafting "
            "was off"
        ) from error


def _parameters(seed: int, temperature: float) -> dict[str, object]:
    return {"seed": seed, "temperature": temperature, "max_tokens": TOKENS}


def _sampled(
    endpoint: Endpoint, topic: str, seed: int, temperature: float = 1.0
) -> Sent:
    return request(endpoint, prompt(topic), **_parameters(seed, temperature))


def _texts(server: Server, sent: Sequence[Sent]) -> list[str]:
    """Return the texts that answer requests, sent one after the other."""
    return [text_of(server.post(*one)) for one in sent]


def _paired(
    sent: Sequence[Sent], first: Sequence[str], second: Sequence[str]
) -> list[Pair]:
    rows = zip(sent, first, second, strict=True)
    return [Pair(*row) for row in rows]


def _verdict(name: str, server: Server, pairs: list[Pair], how: str) -> Check:
    """Return the outcome: numerics if every difference is a greedy one within
    rounding.
    """
    bad = [pair for pair in pairs if pair.differs]
    if not bad and not any(pair.first for pair in pairs):
        return Check(name, "proves nothing", "all texts are empty")
    if not bad:
        return Check(name, "passed", f"{len(pairs)} texts are equal, {how}")
    margins = [_margin(server, pair) for pair in bad]
    rounded = [one is not None and one <= ROUNDING for one in margins]
    evidence = {
        "texts": len(pairs),
        "differences": len(bad),
        "margins in nats": margins,
        "first differences": [pair.as_json() for pair in bad[:SHOWN]],
    }
    what = f"{len(bad)} of {len(pairs)} texts differ, {how}"
    if all(rounded):
        what += "; all where two tokens are within rounding"
        return Check(name, "numerics", what, evidence)
    return Check(name, "failed", what, evidence)


def _margin(server: Server, pair: Pair) -> float | None:
    """Return the margin of a greedy difference; None where noise decides, or the server
    gives no log-probabilities.
    """
    if pair.sent[1].get("temperature"):
        return None
    try:
        return margin(server, pair.sent, (pair.first, pair.second))
    except (Unsupported, Broken, LookupError, TypeError):
        return None
