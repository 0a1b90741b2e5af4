"""The number of turns, by a clock that the test moves."""

from collections.abc import Iterator
from itertools import islice

import pytest

from foreword_lab.bench.roofline import timing
from foreword_lab.bench.roofline.timing import TURNS, turns


class Watch:
    """A clock that only the test moves."""

    def __init__(self) -> None:
        self.shows = 1000.0

    def __call__(self) -> float:
        return self.shows


@pytest.fixture
def watch(monkeypatch) -> Watch:
    watch = Watch()
    monkeypatch.setattr(timing, "perf_counter", watch)
    return watch


def taken(watch: Watch, of: Iterator[int], each: float) -> list[int]:
    """The turns, if one takes `each` seconds."""
    found = []
    for turn in islice(of, 100):
        found.append(turn)
        watch.shows += each
    return found


@pytest.mark.parametrize(
    ("spend", "each", "count"),
    [
        (0.0, 0.0, TURNS),
        (1.0, 60.0, TURNS),
        (10.0, 1.0, 10),
        (10.0, 3.0, 4),
        (10.0, 9.0, TURNS),
    ],
)
def test_turns_fill_the_time_but_are_a_few_at_least(watch, spend, each, count):
    assert taken(watch, turns(spend), each) == [*range(count)]


def test_time_begins_with_the_first_turn(watch):
    later = turns(10.0)
    watch.shows += 60.0  # a slow start before the first turn
    assert len(taken(watch, later, 2.0)) == 5
