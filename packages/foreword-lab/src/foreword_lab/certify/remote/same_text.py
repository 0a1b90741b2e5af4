"""The same request twice: alone, beside others, after another prompt, and without
drafting.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from foreword_lab.certify.remote.ask import (
    ROUNDING,
    TOPICS,
    Endpoint,
    common,
    margin,
    prompt,
    request,
    sampling,
    text_of,
    with_logprobs,
)
from foreword_lab.certify.remote.client import (
    Body,
    Broken,
    Server,
    Unsupported,
)
from foreword_lab.certify.remote.forms import (
    CALL,
    LONGEST,
    QUESTION,
    SCHEMA,
)
from foreword_lab.certify.report import Check

TOKENS = 24
"""Tokens. Length of each answer."""
BESIDE = 8
"""Requests. Sent at once."""
SHOWN = 3
"""Differences that a report lists."""
PLAIN = "none"
"""Method of Foreword that drafts nothing."""
FAR = 0.3
"""Share of the shorter text that two texts have in common, on average: below, they are
other draws; rounding makes some texts part later.
"""
PREFIX = "The archive keeps letters, maps and lists of ships. " * 12
"""Beginning that two prompts share: longer than a block of usual caches."""

LIKELIEST = 5
"""Tokens that are listed where log-probabilities are asked for."""
IGNORED, SAMPLED = "the seed is ignored", "sampled differences"
"""Evidence that other checks decide on."""
SEED = "the seed is honoured"

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

    @property
    def shared(self) -> float:
        """Share of the longer text that both begin with."""
        longer = max(len(self.first), len(self.second))
        return len(common((self.first, self.second))) / longer if longer else 1.0

    @property
    def is_greedy(self) -> bool:
        """Whether no noise decides."""
        return not self.sent[1].get("temperature")

    def as_json(self) -> dict[str, Any]:
        """Return plain values."""
        return {
            "request": dict(self.sent[1]),
            "first": self.first,
            "second": self.second,
        }


def seed_check(
    server: Server,
    endpoint: Endpoint,
    seeds: Sequence[int],
) -> Check:
    """Return whether a seed gives one text, and other seeds other texts."""
    name = f"{SEED}: {endpoint}"
    topic = TOPICS[0]
    sent = [_sampled(endpoint, topic, seed) for seed in seeds]
    first = _texts(server, sent)
    pairs = _paired(sent, first, _texts(server, sent))
    if not any(pair.differs for pair in pairs) and len({*first}) == 1:
        what = f"{len(seeds)} seeds gave one and the same text"
        return Check(name, "cannot say", what, {"text": first[0]})
    if _are_far(pairs):
        evidence = {IGNORED: True, "first differences": _shown(pairs)}
        return Check(name, "cannot say", "the seed is ignored", evidence)
    return _verdict(name, server, pairs, "asked twice, one after the other")


def beside_check(
    server: Server,
    endpoint: Endpoint,
    temperature: float,
) -> Check:
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
        return Check(name, "cannot say", what)
    together = [text_of(one) for one in server.at_once(sent)]
    pairs = _paired(sent, alone, together)
    return _verdict(name, server, pairs, f"alone and {BESIDE} at once")


def prefix_check(
    server: Server,
    endpoint: Endpoint,
    label: int,
) -> Check:
    """Return whether a prompt gives the same text before and after another one that
    begins alike: A, B, A, B.
    """
    name = f"same text after another prompt, A B A: {endpoint}"
    sent = []
    for index, temperature in enumerate((0.0, 1.0)):
        start = f"Shelf {label} {index}. {PREFIX}"
        for topic in TOPICS[:2]:
            text = start + prompt(topic)
            parameters = sampling(index, temperature, TOKENS)
            sent.append(request(endpoint, text, **parameters))
    pairs = []
    for both in (sent[:2], sent[2:]):
        before = _texts(server, both)
        pairs += _paired(both, before, _texts(server, both))
    return _verdict(name, server, pairs, "before and after another prompt")


def logprobs_check(
    server: Server,
    endpoint: Endpoint,
    seeds: Sequence[int],
) -> Check:
    """Return whether a request gives the same text where log-probabilities are asked
    for: only such texts are held against their distributions.
    """
    name = f"same text with log-probabilities: {endpoint}"
    sent = _mixed(endpoint, seeds)
    without = _texts(server, sent)
    more = with_logprobs(endpoint, LIKELIEST)
    listed = _texts(server, [(path, {**body, **more}) for path, body in sent])
    pairs = _paired(sent, without, listed)
    return _verdict(name, server, pairs, "with log-probabilities and without")


def drafting_check(
    server: Server,
    endpoint: Endpoint,
    seeds: Sequence[int],
) -> Check:
    """Return whether a request gives the same text with drafting turned off.

    Raises Unsupported where an answer does not count its draft tokens, or where a
    request cannot turn drafting off.
    """
    name = f"same text without drafting: {endpoint}"
    sent = _mixed(endpoint, seeds)
    if endpoint == "chat":
        sent += _forms(server, seeds[0])
    with_drafts = [server.post(*one) for one in sent]
    plain = [server.post(*without_drafting(one)) for one in sent]
    drafted = sum(map(accepted, with_drafts))
    refuse_drafted(plain)
    if not drafted:
        what = "no draft token was accepted"
        return Check(name, "cannot say", what)
    texts = [[*map(text_of, answers)] for answers in (with_drafts, plain)]
    pairs = _paired(sent, *texts)
    return _verdict(name, server, pairs, f"with {drafted} draft tokens and with none")


def without_drafting(sent: Sent) -> Sent:
    """Return the request with drafting turned off, for Foreword and llama.cpp."""
    path, body = sent
    return path, {**body, "speculative": {"method": PLAIN}, "speculative.n_max": 0}


def accepted(answer: Any) -> int:
    """Return the accepted draft tokens of an answer. Raises Unsupported where it does
    not count them.
    """
    try:
        if "timings" in answer:
            return int(answer["timings"].get("draft_n_accepted", 0))
        counted = answer["metrics"]["speculative_decoding"]
        return int(counted["num_accepted_draft_tokens"])
    except (LookupError, TypeError) as error:
        raise Unsupported(
            "answers do not count their draft tokens, so nothing says that drafting "
            "was off"
        ) from error


def refuse_drafted(answers: Sequence[Any]) -> None:
    """Raise Unsupported if draft tokens were accepted in plain answers."""
    if any(map(accepted, answers)):
        raise Unsupported(
            "the server drafts although drafting was turned off, so there is nothing "
            "to compare with"
        )


def _mixed(
    endpoint: Endpoint,
    seeds: Sequence[int],
) -> list[Sent]:
    """Return greedy and sampled requests by turns."""
    return [
        _sampled(endpoint, TOPICS[index % len(TOPICS)], seed, index % 2)
        for index, seed in enumerate(seeds)
    ]


def _forms(server: Server, seed: int) -> list[Sent]:
    """Return requests for a call and for JSON that the server does not refuse."""
    forms = []
    for form in (CALL, SCHEMA):
        for temperature in (0.0, 1.0):
            parameters = sampling(seed, temperature, LONGEST)
            sent = request("chat", QUESTION, **parameters, **form)
            try:
                text_of(server.post(*sent))
            except Unsupported:
                break
            forms.append(sent)
    return forms


def _sampled(
    endpoint: Endpoint, topic: str, seed: int, temperature: float = 1.0
) -> Sent:
    parameters = sampling(seed, temperature, TOKENS)
    return request(endpoint, prompt(topic), **parameters)


def _texts(
    server: Server,
    sent: Sequence[Sent],
) -> list[str]:
    """Return the texts that answer requests, sent one after the other."""
    return [text_of(server.post(*one)) for one in sent]


def _paired(
    sent: Sequence[Sent], first: Sequence[str], second: Sequence[str]
) -> list[Pair]:
    rows = zip(sent, first, second, strict=True)
    return [Pair(*row) for row in rows]


def _verdict(
    name: str,
    server: Server,
    pairs: list[Pair],
    how: str,
) -> Check:
    """Return the outcome: numerics if every difference may be rounding.

    A greedy difference may be where two tokens are within rounding. Of a sampled one
    the noise is not known: whether tokens have the right distribution decides.
    """
    bad = [pair for pair in pairs if pair.differs]
    if not bad and not any(pair.first for pair in pairs):
        return Check(name, "cannot say", "all texts are empty")
    if not bad:
        return Check(name, "consistent", f"{len(pairs)} texts are equal, {how}")
    greedy = [pair for pair in bad if pair.is_greedy]
    margins = [_margin(server, pair) for pair in greedy]
    evidence = {
        "texts": len(pairs),
        "differences": len(bad),
        "margins in nats": margins,
        SAMPLED: len(bad) - len(greedy),
        "first differences": _shown(bad),
    }
    what = f"{len(bad)} of {len(pairs)} texts differ, {how}"
    if any(one is not None and one > ROUNDING for one in margins):
        return Check(name, "differs", what, evidence)
    if None in margins:
        what += "; no log-probability says whether by rounding"
        return Check(name, "cannot say", what, evidence)
    if greedy:
        what += "; greedy ones where two tokens are within rounding"
    return Check(name, "numerics", what, evidence)


def settled(
    checks: Sequence[Check],
    *,
    consistent: bool,
) -> list[Check]:
    """Return the checks, by what is known after all of them.

    consistent: whether sampled tokens have the right distribution. Only then is a
    sampled text that parts rounding. A seed that one endpoint honours is to be honoured
    on the other, too.
    """
    honoured = any(
        check.name.startswith(SEED) and check.status in ("consistent", "numerics")
        for check in checks
    )
    return [
        _settled(check, consistent=consistent, honoured=honoured) for check in checks
    ]


def _settled(
    check: Check,
    *,
    consistent: bool,
    honoured: bool,
) -> Check:
    if check.evidence.get(IGNORED) and honoured:
        what = f"{check.what} here, and honoured on another endpoint"
        return replace(check, status="differs", what=what)
    if check.status == "numerics" and check.evidence.get(SAMPLED) and not consistent:
        what = f"{check.what}; nothing says whether by rounding"
        return replace(check, status="cannot say", what=what)
    return check


def _are_far(pairs: Sequence[Pair]) -> bool:
    return sum(pair.shared for pair in pairs) < FAR * len(pairs)


def _shown(pairs: Sequence[Pair]) -> list[dict[str, Any]]:
    return [pair.as_json() for pair in pairs if pair.differs][:SHOWN]


def _margin(server: Server, pair: Pair) -> float | None:
    """Return the margin of a greedy difference; None where the server gives no
    log-probabilities.
    """
    try:
        return margin(server, pair.sent, (pair.first, pair.second))
    except (Unsupported, Broken, LookupError, TypeError):
        return None
