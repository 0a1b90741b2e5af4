"""A budget that finds nothing worth drafting does not look again for a few rounds, and
begins with what earlier processes have kept of a method.
"""

from itertools import pairwise
from pathlib import Path

import pytest

import starter
from foreword import LLM, SamplingParams
from foreword.budget import AdaptiveBudget, RoundResult
from foreword.budget.constants import C
from foreword.budget.kept import KeptPace, KeptSpeeds
from foreword.files import CachedValues
from foreword.types import Clock, Request

FLAT = dict.fromkeys((1, 2, 4, 8, 16, 32), 1.0)
SORT = (True, True)
"""Greedy and unfiltered."""


def request(id: int = 1) -> Request:
    params = SamplingParams(max_tokens=999, temperature=0)
    return Request(id, [1, 2, 3], 3, params, seed=0)


def play(budget: AdaptiveBudget, running: list[Request], rounds: int) -> list[int]:
    """Rounds whose draft tokens cost more than they save; return what was asked for,
    None where the budget rested.
    """
    asked = []
    for _ in range(rounds):
        rests = budget.rests(running)
        counts = [
            0 if rests else budget.nodes(one, len(running) - 1) for one in running
        ]
        made = sum(counts)
        clock = Clock(propose=1.0 * made, score=1.0, verify=0.01)
        budget.on_timing(len(running) + made, clock)
        for one, count in zip(running, counts, strict=True) if made else ():
            outcome = RoundResult(count, count, 0, clock.propose, clock.total)
            budget.learn(one, outcome)
        asked.append(None if rests else made)
    return asked


@pytest.fixture
def kept(tmp_path: Path) -> KeptPace:
    speeds = KeptSpeeds(CachedValues("speeds", {"machine": "here"}, tmp_path))
    return KeptPace(speeds, "match", "AdaptiveBudget", "lm")


def test_nothing_is_considered_for_some_rounds_after_some_without_drafts():
    budget, one = AdaptiveBudget(FLAT), request()
    asked = play(budget, [one], 400)
    assert sum(filter(None, asked)) > 0, "drafting was tried"
    looks = [at for at, count in enumerate(asked) if count is not None]
    late = [after - at for at, after in pairwise(looks)][-20:]
    assert set(late) <= {1, 1 + C.rest}
    assert late.count(1 + C.rest) > 10


def test_a_new_sequence_is_considered_at_once():
    budget, one = AdaptiveBudget(FLAT), request()
    play(budget, [one], 400)
    if not budget.rests([one]):
        play(budget, [one], 1)
    assert budget.rests([one])
    assert not budget.rests([one, request(2)]), "one more"
    assert not budget.rests([request(2)]), "another one"


def test_what_a_method_lost_is_known_to_the_next_process(kept):
    first, one = AdaptiveBudget(FLAT), request()
    first.recall(kept)
    assert sum(filter(None, play(first, [one], 300))) > 0
    first.release(one)
    assert kept.pace(SORT, 1) == pytest.approx(first._balances.found[*SORT, 1].speed)
    assert kept.pace(SORT, 1) < C.losing

    fresh, known = AdaptiveBudget(FLAT), AdaptiveBudget(FLAT)
    known.recall(kept)
    assert sum(filter(None, play(fresh, [request()], 100))) > 0
    assert sum(filter(None, play(known, [request()], 100))) == 0
    later = play(known, [request(2)], 1200)
    assert sum(filter(None, later)) > 0, "it is tried again: the machine may differ now"


def test_a_method_that_won_is_used_from_the_start(kept):
    kept.record(SORT, 1, 1.8)
    budget = AdaptiveBudget(FLAT)
    budget.recall(kept)
    assert play(budget, [request()], 1)[0]


def test_a_method_among_others_keeps_nothing_of_its_own(kept):
    team = AdaptiveBudget(FLAT)
    one = team.anew()
    one.recall(kept)
    text = request()
    play(one, [text], 100)
    one.release(text)
    assert kept.pace(SORT, 1) is None


@pytest.mark.parametrize(("pace", "drafts"), [(0.5, False), (None, True)])
def test_engine_recalls_what_is_kept_of_its_method(pace, drafts):
    target, draft = str(starter.target()), str(starter.draft())
    ask = SamplingParams(max_tokens=6, temperature=0)
    with LLM(target, draft=draft, method="lm") as llm:
        budget = llm.engine.budget
        assert isinstance(budget, AdaptiveBudget)
        seen = budget._balances.kept
        assert seen is not None
        assert draft in seen.method
    if pace:
        seen.record(SORT, 1, pace)
    with LLM(target, draft=draft, method="lm") as llm:
        [answer] = llm.generate("The river", ask)
    assert (answer.stats.drafted > 0) == drafts
