"""Parameters of a request that drafting could break: filters, a biased token, stop
texts and lengths.
"""

import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any, TypeAlias

from foreword_lab.certify.remote.ask import (
    ROUNDING,
    TOPICS,
    Endpoint,
    Scored,
    choice_of,
    prompt,
    request,
    sampling,
    scored,
    text_of,
)
from foreword_lab.certify.remote.client import Server
from foreword_lab.certify.remote.source import Source
from foreword_lab.certify.report import Check

TOKENS = 24
"""Tokens. Length of each answer."""
RARE = 1e-4
"""Probability of accusing a server that does not know a filter."""
BIASED = 1000
"""Token id that a bias forces."""
FORCE = 100
"""Nats. The largest bias of OpenAI's API."""
LENGTHS = (1, 2, 3, 5, 8)
"""Tokens. Lengths that answers are cut to."""
SLACK = 0.02
"""Probability. Rounding of the mass that `top_p` compares."""

Removes: TypeAlias = Callable[[Scored, int], bool]
"""(token, index of a listed one) -> whether that one is surely taken away."""


def _top_k(token: Scored, index: int) -> bool:
    return index >= 3 and token.top[2][1] - token.top[index][1] > ROUNDING


def _min_p(token: Scored, index: int) -> bool:
    least = token.top[0][1] + math.log(0.2)
    return token.top[index][1] < least - ROUNDING


def _top_p(token: Scored, index: int) -> bool:
    ahead = (one for _, one in token.top if one - token.top[index][1] > ROUNDING)
    return sum(map(math.exp, ahead)) > 0.6 + SLACK


FILTERS: dict[str, tuple[float, Removes]] = {
    "top_k": (3, _top_k),
    "min_p": (0.2, _min_p),
    "top_p": (0.6, _top_p),
}
"""Values of parameters that take tokens away, and which ones they take."""


def filter_check(
    server: Server,
    source: Source,
    filter: str,
    seed: int,
) -> Check:
    """Return whether no token is drawn that a filter takes away.

    Raises Unsupported if the server refuses it.
    """
    value, removes = FILTERS[filter]
    name = f"{filter} {value:g} is obeyed: {source.endpoint}"
    warm = replace(source, temperature=1.0)
    sent = []
    for at, topic in enumerate(TOPICS):
        path, body = warm.asked(topic, seed + at, TOKENS)
        sent.append((path, {**body, filter: value}))
    tokens = [token for answer in server.at_once(sent) for token in scored(answer)]
    listed = [token for token in tokens if token.top]
    removed = sum(removes(token, _index(token)) for token in listed)
    expected = sum(_removed_mass(token, removes) for token in listed)
    evidence = {
        "tokens": len(listed),
        "drawn although taken away": removed,
        "expected without the filter": round(expected, 2),
    }
    if not removed:
        what = f"none of {len(listed)} tokens is taken away"
        return Check(name, "consistent", what, evidence)
    if _few(removed, expected) > RARE:
        return Check(name, "cannot say", "the server does not filter", evidence)
    what = f"{removed} of {len(listed)} tokens should have been taken away"
    return Check(name, "differs", what, evidence)


def _index(token: Scored) -> int:
    names = [name for name, _ in token.top]
    return names.index(token.token) if token.token in names else len(names) - 1


def _removed_mass(token: Scored, removes: Removes) -> float:
    """Return the probability of what is taken away; tokens that are not listed go with
    the last one that is.
    """
    masses = [math.exp(logprob) for _, logprob in token.top]
    masses[-1] += max(0.0, 1 - sum(masses))
    return sum(mass for at, mass in enumerate(masses) if removes(token, at))


def _few(count: int, mean: float) -> float:
    """Return a bound of the probability of so few events or fewer (Chernoff 1952)."""
    if count >= mean:
        return 1.0
    return math.exp(count - mean + count * math.log(mean / count))


def bias_check(
    server: Server,
    endpoint: Endpoint,
    seed: int,
) -> Check:
    """Return whether a token that a bias forces is every token.

    Raises Unsupported if the server refuses a bias.
    """
    name = f"logit_bias is obeyed: {endpoint}"
    biased = {"logit_bias": {str(BIASED): FORCE}}
    greedy, sampled = (
        text_of(server.post(*_asked(endpoint, seed, heat, **biased)))
        for heat in (0.0, 1.0)
    )
    evidence = {"greedy": greedy, "sampled": sampled}
    if not _is_repeated(greedy) and not _is_repeated(sampled):
        return Check(name, "cannot say", "a bias forces no token", evidence)
    if greedy != sampled:
        what = "a forced token is not every token"
        return Check(name, "differs", what, evidence)
    return Check(name, "consistent", "a forced token is every token", evidence)


def _is_repeated(text: str) -> bool:
    """Return whether a text is one token TOKENS times; the first may lack its space."""
    unit = text[-len(text) // TOKENS :]
    return bool(text) and text.endswith(unit * (TOKENS - 1))


def stop_check(server: Server, endpoint: Endpoint) -> Check:
    """Return whether answers end right before a stop text.

    Raises Unsupported if the server refuses one.
    """
    name = f"stop texts are obeyed: {endpoint}"
    text = text_of(server.post(*_asked(endpoint, 0, 0.0)))
    stops = _stops(text)
    answers = [server.post(*_asked(endpoint, 0, 0.0, stop=[stop])) for stop in stops]
    texts = [*map(text_of, answers)]
    if not any(choice_of(one).get("finish_reason") == "stop" for one in answers):
        return Check(name, "cannot say", "a stop text ends nothing", {"text": text})
    faults = [
        {"stop": stop, "text": other, "without": text}
        for stop, other in zip(stops, texts, strict=True)
        if stop in other or _is_cut(text, other, text.index(stop))
    ]
    if faults:
        what = f"{len(faults)} of {len(stops)} answers end elsewhere"
        return Check(name, "differs", what, {"faults": faults})
    return Check(name, "consistent", f"{len(stops)} answers end there")


def _is_cut(text: str, other: str, end: int) -> bool:
    """Return whether a text goes on as another one, and does not end where it should.
    Where they part, the end is another one.
    """
    return text.startswith(other) and len(other) != end


def length_check(
    server: Server,
    endpoint: Endpoint,
) -> Check:
    """Return whether answers have no more tokens than were asked for."""
    name = f"lengths are obeyed: {endpoint}"
    counts = []
    for length in LENGTHS:
        answer = server.post(*_asked(endpoint, 0, 1.0, max_tokens=length))
        usage = answer.get("usage") or {}
        counts.append((length, usage.get("completion_tokens")))
    faults = [pair for pair in counts if pair[1] is not None and pair[1] > pair[0]]
    if faults:
        what = f"{len(faults)} of {len(counts)} answers are longer"
        return Check(name, "differs", what, {"asked and answered": faults})
    if any(used is None for _, used in counts):
        return Check(name, "cannot say", "answers do not count their tokens")
    return Check(name, "consistent", f"{len(counts)} answers are no longer")


def _stops(text: str) -> list[str]:
    """Return texts from the middle of an answer, in a token and over several."""
    middle = len(text) // 2
    stops = [text[middle : middle + size] for size in (1, 4, 9)]
    return [stop for stop in stops if stop.strip()]


def _asked(
    endpoint: Endpoint, seed: int, temperature: float, **more: Any
) -> tuple[str, dict[str, Any]]:
    parameters = sampling(seed, temperature, TOKENS) | more
    return request(endpoint, prompt(TOPICS[0]), **parameters)
