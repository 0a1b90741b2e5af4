"""Rounds follow the costs, to the last digit, and the engine's own scheduler."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from foreword.engine.scheduler import Scheduler
from foreword.types import Request, SamplingParams
from foreword_lab.simulate.cluster import Cluster, Replica, Router, Times, works_of
from foreword_lab.simulate.costs import ReplicaCosts
from foreword_lab.simulate.load import Load, LoadRequest

EACH = {1: 0.25, 5: 1.25}
"""A forward that takes a quarter of a second a row: all times are exact in binary."""


def ask(
    arrival: float = 0.0,
    prompt: int = 4,
    answer: int = 3,
    acceptance: float | None = None,
) -> LoadRequest:
    return LoadRequest(
        arrival=arrival,
        prompt_tokens=prompt,
        answer_tokens=answer,
        acceptance=acceptance,
    )


def simulated(
    costs: ReplicaCosts,
    *requests: LoadRequest,
    replicas: int = 1,
    clients: int | None = None,
) -> list[Times]:
    load = Load(requests, clients)
    return Cluster(costs, load, replicas).run().times


def triples(times: list[Times]) -> list[tuple[float, float, float]]:
    return [(one.sent, one.first, one.last) for one in times]


def test_one_client_waits_for_each_answer() -> None:
    costs = ReplicaCosts(forward=EACH, request=0.125)
    found = simulated(costs, ask(), ask(prompt=2, answer=1), clients=1)
    # on the way 0.125; four rows, 1.0; then two rounds of one row
    first = (0.0, 1.125, 1.625)
    # on the way 0.125; two rows, 0.5, which write the only token
    second = (1.625, 2.25, 2.25)
    assert triples(found) == [first, second]


def test_prompt_is_read_in_chunks_beside_the_writing() -> None:
    costs = ReplicaCosts(forward=EACH, chunk=4)
    found = simulated(costs, ask(answer=4), ask(prompt=6, answer=2))
    # rows: 4 | 1 + 4 | 1, which is measured | 1 + 2 | 1
    ends = [1.0, 2.25, 2.5, 3.25, 3.5]
    assert triples(found) == [(0.0, ends[0], ends[3]), (0.0, ends[3], ends[4])]


def test_request_that_arrives_in_a_round_waits_for_the_next() -> None:
    costs = ReplicaCosts(forward=EACH)
    found = simulated(costs, ask(), ask(arrival=0.5, prompt=2, answer=1))
    # rows: 4 | 1 + 2 | 1
    assert triples(found) == [(0.0, 1.0, 2.0), (0.5, 1.75, 1.75)]


def test_slots_bound_the_answers_at_a_time() -> None:
    costs = ReplicaCosts(forward=EACH, slots=1)
    found = simulated(costs, ask(), ask())
    assert triples(found) == [(0.0, 1.0, 1.5), (0.0, 2.5, 3.0)]


def test_full_queue_refuses() -> None:
    costs = ReplicaCosts(forward=EACH, queue=1)
    found = simulated(costs, ask(), ask(arrival=0.5), ask(arrival=4.0))
    assert [one.refused for one in found] == [False, True, False]
    assert math.isnan(found[1].first)
    assert triples(found)[2] == (4.0, 5.0, 5.5)


def test_place_is_free_in_the_second_in_which_an_answer_ends() -> None:
    costs = ReplicaCosts(forward=EACH, queue=1)
    found = simulated(costs, ask(), ask(arrival=1.5))
    assert triples(found) == [(0.0, 1.0, 1.5), (1.5, 2.5, 3.0)]


def test_refused_client_waits_as_the_server_says() -> None:
    costs = ReplicaCosts(forward=EACH, queue=1)
    found = simulated(costs, ask(answer=9), ask(), ask(), clients=2)
    # refused at 0, and again a second later: 1 + 1 // 32
    assert [one.sent for one in found] == [0.0, 0.0, 1.0]
    assert [one.refused for one in found] == [False, True, True]


def test_router_prefers_the_least_loaded_and_then_the_first() -> None:
    costs = ReplicaCosts(forward=EACH)
    (left, right, third) = simulated(
        costs,
        ask(),
        ask(prompt=2, answer=1),
        ask(arrival=0.75, prompt=1, answer=1),
        replicas=2,
    )
    assert left.last == 1.5
    assert right.last == 0.5
    # the second replica is idle again, the first one still writes
    assert third.last == 1.0


def test_router_sends_equal_loads_to_the_first() -> None:
    costs = ReplicaCosts(forward=EACH)
    lone = simulated(costs, ask(), ask(arrival=8.0), replicas=3)
    assert triples(lone) == [(0.0, 1.0, 1.5), (8.0, 9.0, 9.5)]
    works = works_of(costs, Load([ask()] * 4))
    replicas = [Replica(costs, works) for _ in range(3)]
    router = Router(replicas)
    sent = []
    for request in range(4):
        sent.append(router.least())
        replicas[sent[-1]].add(request)
        router.changed(sent[-1])
    assert sent == [0, 1, 2, 0]


def test_every_cost_is_counted() -> None:
    costs = ReplicaCosts(
        forward={1: 1.0, 9: 9.0},
        context=2.0,
        context_token=0.5,
        prompt_token=0.25,
        draft=16.0,
        draft_token=0.125,
        sequence=32.0,
        round=64.0,
        draft_tokens=2.0,
        tokens=2.0,
    )
    (one,) = simulated(costs, ask(answer=6))
    # four rows and two draft tokens, two tokens of context more than two, three prompt
    # tokens beside the last
    first = 6.0 + 1.0 + 0.75 + 16.0 + 0.25 + 32.0 + 64.0
    # one row and two draft tokens, four tokens of context more than two
    second = 3.0 + 2.0 + 16.0 + 0.25 + 32.0 + 64.0
    # two tokens of context more than that
    third = second + 1.0
    assert triples([one]) == [(0.0, first, first + second + third)]


def test_acceptance_of_a_request_sets_its_rounds() -> None:
    costs = ReplicaCosts(forward={1: 1.0}, draft_tokens=3.0, tokens=1.0)
    load = Load([ask(answer=10, acceptance=one) for one in (0.0, 0.5, 1.0)])
    assert [work.rounds for work in works_of(costs, load)] == [10, 4, 3]


def test_shares_of_rounds_set_the_tokens() -> None:
    twos = ReplicaCosts(forward={1: 1.0}, tokens=(0.0, 1.0))
    (work,) = works_of(twos, Load([ask(answer=5)]))
    assert work.rounds == 3
    mixed = ReplicaCosts(forward={1: 1.0}, tokens=(0.5, 0.0, 0.5))
    works = works_of(mixed, Load([ask(answer=1000) for _ in range(20)]))
    rounds = [work.rounds for work in works]
    assert len({*rounds}) > 1
    assert sum(rounds) / 20 == pytest.approx(500, rel=0.03)


def test_forward_is_a_line_between_and_beyond_what_was_measured() -> None:
    costs = ReplicaCosts(forward={2: 2.0, 4: 3.0, 8: 9.0})
    seconds = [costs.forward_seconds(rows) for rows in (1, 2, 3, 6, 10)]
    assert seconds == [2.0, 2.0, 2.5, 6.0, 12.0]
    noisy = ReplicaCosts(forward={1: 1.0, 8: 8.0, 9: 8.0})
    assert noisy.forward_seconds(17) == pytest.approx(8.0 + 8 * 7 / 8)
    assert ReplicaCosts(forward={4: 2.0}).forward_seconds(99) == 2.0


@given(
    st.lists(
        st.tuples(st.integers(1, 40), st.integers(1, 12)), min_size=1, max_size=12
    ),
    st.integers(1, 5),
    st.integers(1, 24),
)
def test_rounds_are_those_of_the_engines_scheduler(sizes, slots, chunk) -> None:
    costs = ReplicaCosts(forward=EACH, slots=slots, chunk=chunk)
    requests = [ask(prompt=prompt, answer=answer) for prompt, answer in sizes]
    replica = Replica(costs, works_of(costs, Load(requests)))
    for place in range(len(sizes)):
        replica.add(place)
    found = []
    while replica.load:
        seconds = replica.start()
        written = replica.end()
        found.append((seconds, sorted(written.begun), sorted(written.ended)))
    assert found == scheduled(costs, sizes)


def scheduled(costs: ReplicaCosts, sizes: list[tuple[int, int]]) -> list:
    """Return seconds, first and last tokens of each round of the real scheduler."""
    scheduler = Scheduler(slots=costs.slots, chunk=costs.chunk)
    for place, (prompt, answer) in enumerate(sizes):
        params = SamplingParams(max_tokens=answer)
        scheduler.add(Request(place, [0] * prompt, prompt, params, seed=0))
    rounds = []
    while not scheduler.idle:
        entries = scheduler.next()
        rows = sum(entry.read for entry in entries)
        begun = []
        ended = []
        for entry in entries:
            one = entry.request
            one.cached += entry.read
            if not entry.writes:
                continue
            one.tokens.append(0)
            if one.produced == 1:
                begun.append(one.id)
            if not one.room:
                ended.append(one.id)
                scheduler.retire(one)
        seconds = costs.forward_seconds(rows)
        scheduler.measure(entries, seconds)
        rounds.append((seconds, sorted(begun), sorted(ended)))
    return rounds
