"""Penalties are checked by the log-probabilities before them, or after."""

from collections import Counter
from collections.abc import Callable

import numpy as np
import pytest

from broken_servers import answering
from foreword_lab.certify.remote.client import Server
from foreword_lab.certify.remote.penalties import penalty_check
from foreword_lab.certify.remote.source import Source
from foreword_lab.certify.report import Check

WORDS = [f" w{number:02d}" for number in range(24)]
SOURCE = Source("completions", 0.0, 12, {}, is_raw=False)

Penalised = Callable[[int], bool]
"""Whether the token at an index is drawn after penalties."""


def written(body, is_penalised: Penalised, *, states_after: bool) -> dict:
    """Return the greedy tokens of fixed logits, after the penalties of a request."""
    dice = np.random.default_rng(len(body["prompt"]))
    counts = Counter[str]()
    names, tops = [], []
    for index in range(body["max_tokens"]):
        logits = dice.normal(size=len(WORDS)) * 0.7
        logits[:3] += 3
        count = np.array([float(counts[word]) for word in WORDS])
        taken = body.get("frequency_penalty", 0) * count
        taken += body.get("presence_penalty", 0) * (count > 0)
        drawn = logits - taken if is_penalised(index) else logits
        stated = drawn if states_after else logits
        stated = stated - np.log(np.exp(stated).sum())
        listed = np.argsort(-stated)[: body["logprobs"]]
        names.append(WORDS[int(drawn.argmax())])
        tops.append({WORDS[at]: float(stated[at]) for at in listed})
        counts[names[-1]] += 1
    logprobs = {"tokens": names, "top_logprobs": tops}
    return {"choices": [{"text": "".join(names), "logprobs": logprobs}]}


def checked(is_penalised: Penalised, *, states_after: bool = False) -> Check:
    def answer(path, body):
        return 200, written(body, is_penalised, states_after=states_after)

    with answering(answer) as url:
        return penalty_check(Server.at(url, model="fixed"), SOURCE)


@pytest.mark.parametrize("states_after", [False, True])
def test_penalties_of_every_token_are_consistent(states_after) -> None:
    check = checked(lambda _: True, states_after=states_after)
    assert check.status == "consistent", check
    assert check.evidence["tokens"] == 320


def test_token_without_its_penalties_is_found() -> None:
    """A round may count the tokens before it only."""
    check = checked(lambda index: index % 3 > 0)
    assert check.status == "differs", check
    assert check.evidence["not the likeliest"] > 20


def test_server_without_penalties_is_not_accused() -> None:
    check = checked(lambda _: False)
    assert (check.status, check.what) == ("cannot say", "penalties change nothing")
