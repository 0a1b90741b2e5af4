"""Every request ends once, a seed has one result, and replicas help."""

import json
import math
from dataclasses import replace
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from foreword.errors import InvalidRequest
from foreword_lab.simulate.cluster import Cluster
from foreword_lab.simulate.costs import ReplicaCosts
from foreword_lab.simulate.load import (
    Lengths,
    Load,
    LoadRequest,
    poisson_arrivals,
    waiting_clients,
)
from foreword_lab.simulate.run import simulate

COSTS = ReplicaCosts(
    forward={1: 0.02, 8: 0.03, 64: 0.1},
    draft=0.002,
    draft_token=0.0002,
    sequence=0.0003,
    round=0.001,
    request=0.004,
    draft_tokens=3.0,
    tokens=(0.4, 0.3, 0.2, 0.1),
    slots=4,
    chunk=64,
    queue=12,
)
SHORT = Lengths(1, 60)


LOADS = st.tuples(
    st.one_of(st.integers(1, 40), st.floats(0.1, 1000)),
    st.integers(1, 60),
    st.integers(0, 99),
)
"""Clients or a rate, requests, and a seed."""


def load_of(given: tuple[float, int, int]) -> Load:
    (many, count, seed) = given
    if isinstance(many, int):
        return waiting_clients(many, SHORT, SHORT, count, seed)
    return poisson_arrivals(many, SHORT, SHORT, count, seed)


@given(LOADS, st.integers(1, 5))
def test_every_request_ends_once(drawn, replicas: int) -> None:
    load = load_of(drawn)
    done: list[int] = []
    outcome = Cluster(COSTS, load, replicas).run(done.append)
    assert done[-1] == len(load.requests) == len(outcome.times)
    for one in outcome.times:
        assert math.isfinite(one.sent)
        ended = one.sent + COSTS.request < one.first <= one.last
        assert ended != one.refused
    report = simulate(COSTS, load, [replicas])
    (row,) = report.rows
    refused = sum(one.refused for one in outcome.times)
    assert (row.answers, row.refused) == (len(outcome.times) - refused, refused)
    pairs = zip(load.requests, outcome.times, strict=True)
    written = [request.answer_tokens for request, one in pairs if not one.refused]
    assert row.tokens == sum(written)
    assert row.tokens_per_second * row.seconds == pytest.approx(row.tokens)
    assert 0 < row.utilisation <= 1 + 1e-9
    assert row.rounds == outcome.rounds <= sum(written) + 60 * len(written)


@given(LOADS)
def test_a_seed_has_one_result(drawn) -> None:
    load = load_of(drawn)
    first = simulate(COSTS, load, [1, 3])
    again = simulate(COSTS, load, [1, 3])
    assert json.dumps(first.as_json()) == json.dumps(again.as_json())
    (alone,) = simulate(COSTS, load, [3]).rows
    assert alone == first.rows[1]


def test_another_seed_has_another_result() -> None:
    clients = [waiting_clients(4, SHORT, SHORT, 40, seed) for seed in (0, 1)]
    rows = [simulate(COSTS, load).rows for load in clients]
    assert rows[0] != rows[1]


@pytest.mark.parametrize("seed", range(8))
def test_more_replicas_are_never_slower(seed: int) -> None:
    endless = replace(COSTS, queue=10_000)
    load = poisson_arrivals(40, SHORT, SHORT, 300, seed)
    rows = simulate(endless, load, [1, 2, 4, 8, 16]).rows
    for fewer, more in pairwise(rows):
        assert more.seconds <= fewer.seconds
        for name in ("first_token", "answer"):
            pairs = zip(getattr(more, name), getattr(fewer, name), strict=True)
            assert all(one <= other for one, other in pairs), name
    assert rows[0].answer[0] > 4 * rows[-1].answer[0]


def test_arrivals_come_at_their_rate() -> None:
    load = poisson_arrivals(50, SHORT, Lengths(7, 7), 4000)
    arrivals = [one.arrival for one in load.requests]
    assert arrivals == sorted(arrivals)
    assert arrivals[-1] == pytest.approx(80, rel=0.05)
    prompts = {one.prompt_tokens for one in load.requests}
    assert prompts == {*range(1, 61)}
    assert {one.answer_tokens for one in load.requests} == {7}


def test_number_of_requests_follows_the_clients() -> None:
    assert len(waiting_clients(3, SHORT, SHORT).requests) == 256
    assert len(waiting_clients(100, SHORT, SHORT).requests) == 400


@pytest.mark.slow
def test_thousand_replicas_answer_all() -> None:
    load = waiting_clients(32_000, Lengths(16, 16), Lengths(8, 8), 32_000)
    (row,) = simulate(COSTS, load, [1000], measured=2).rows
    assert row.extrapolated
    # twelve places each, and 32 clients for each
    assert row.answers == 12_000
    assert row.refused == 20_000


def test_more_than_measured_is_extrapolated() -> None:
    load = Load([LoadRequest(arrival=0.0, prompt_tokens=1, answer_tokens=1)])
    report = simulate(COSTS, load, [1, 2, 3], measured=2)
    assert [row.extrapolated for row in report.rows] == [False, False, True]
    assert report.rows[0].per_token == (None, None, None)


@pytest.mark.parametrize("replicas", [[], [0], [1, -2], [100_001]])
def test_numbers_of_replicas_that_cannot_be(replicas: list[int]) -> None:
    load = Load([LoadRequest(arrival=0.0, prompt_tokens=1, answer_tokens=1)])
    with pytest.raises(InvalidRequest, match="each must be from 1 to 100000"):
        simulate(COSTS, load, replicas)
