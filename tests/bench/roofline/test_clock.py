"""How many turns are taken, by a clock that the test winds."""

from collections.abc import Iterator
from itertools import islice

import pytest

from foreword.bench.roofline import timing
from foreword.bench.roofline.timing import TURNS, turns


class Watch:
    """Shows seconds; nobody but the test moves it."""

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
def test_there_are_a_few_turns_however_long_they_take_and_then_until_the_time_is_over(
    watch, spend, each, count
):
    assert taken(watch, turns(spend), each) == [*range(count)]


def test_the_time_begins_with_the_first_turn(watch):
    later = turns(10.0)
    watch.shows += 60.0  # something that finds everything cold
    assert len(taken(watch, later, 2.0)) == 5
