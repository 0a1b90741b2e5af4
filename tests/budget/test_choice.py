"""Which arm is used: the fastest soon, plain decoding where all others lose, and none
is given up for good.

Speeds are given, not measured; random numbers are fixed.
"""

import random
from dataclasses import dataclass, field

import pytest

from foreword.budget.choice import RETRY, SHARE, SPAN, START, Choice, OnText

PLAIN = 3
"""The arms: two slow or fast ones with a model, one that looks up, and plain."""
LOOKUP = 2


@dataclass
class World:
    """Arms of known speeds, in rounds that accept some tokens or none, at random."""

    paces: list[float]
    spent: float = 0.0
    tokens: float = 0.0
    uses: list[int] = field(default_factory=lambda: [0] * 4)
    dice: random.Random = field(default_factory=lambda: random.Random(1))

    def round(self, choice: Choice, ratios: list[float] | None = None) -> int:
        arm = choice.decide(lambda: [ratios or [1.0] * 4])
        self.uses[arm] += 1
        if arm == PLAIN:
            choice.pass_plain()
            self.spent += 1.0
            self.tokens += 1.0
            return arm
        cost = 1.5
        tokens = self.dice.choice([0.2, 1.0, 1.8]) * cost * self.paces[arm]
        self.spent += cost
        self.tokens += tokens
        choice.learn(arm, tokens, cost)
        return arm

    def play(self, choice: Choice, rounds: int, text: int = 40) -> None:
        for number in range(rounds):
            if number % text == 0:
                choice.begin_text()
            self.round(choice)

    @property
    def regret(self) -> float:
        """Share of the time that the best arm would have saved."""
        best = max(*self.paces, 1.0)
        return 1 - self.tokens / best / self.spent


@pytest.mark.parametrize("fastest", [0, 1, LOOKUP])
def test_fastest_arm_is_used(fastest: int):
    paces = [1.2, 1.2, 1.2]
    paces[fastest] = 3.0
    world, choice = World(paces), Choice(4, PLAIN)
    world.play(choice, 8000)
    assert world.uses[fastest] > 0.9 * 8000
    assert world.regret < 0.05


def test_plain_decoding_is_used_where_every_arm_loses():
    world, choice = World([0.7, 0.5, 0.9]), Choice(4, PLAIN)
    world.play(choice, 4000)
    assert world.uses[PLAIN] > 0.9 * 4000
    # the first rounds, then a share of the time
    assert world.regret < SHARE + (START + 2 * SPAN) / 4000
    assert all(world.uses)


def test_plain_decoding_is_tried_too():
    """Every speed is measured by its rounds, which other programs may have changed."""
    world, choice = World([2.0, 0.5, 0.9]), Choice(4, PLAIN)
    world.play(choice, 8000)
    assert SPAN < world.uses[PLAIN] < 0.1 * 8000
    assert world.regret < 2 * SHARE + (START + 2 * SPAN) / 8000


@pytest.mark.slow
@pytest.mark.parametrize("before", [0.5, 3.0])
def test_an_arm_that_becomes_fast_is_found(before: float):
    """Whether plain decoding or another arm was in use."""
    world, choice = World([before, 0.5, 0.5]), Choice(4, PLAIN)
    world.play(choice, 2000)
    world.paces[1] = 6.0
    uses = world.uses[1]
    world.play(choice, 12_000)
    assert world.uses[1] - uses > 6000


def test_one_stall_of_the_machine_changes_nothing():
    world, choice = World([3.0, 1.2, 1.2]), Choice(4, PLAIN)
    world.play(choice, 1000)
    pace = choice.pace(0)
    choice.learn(0, 1.0, 10_000.0)
    choice.learn(0, float("nan"), 1.0)
    choice.learn(0, 1.0, float("inf"))
    assert choice.pace(0) > 0.9 * pace
    assert choice.best([]) == 0


def test_a_lookup_that_is_scored_needs_no_trial():
    world, choice = World([2.0, 1.9, 4.0]), Choice(4, PLAIN)
    for _ in range(SPAN):
        world.round(choice)
        choice.scored[LOOKUP].add(4.0, 1.0)
    assert choice.known(LOOKUP)
    while choice.trial or choice.left > 0 or not choice.known(1):
        world.round(choice)
    choice.begin_text()
    choice.spare = 0.0
    assert world.round(choice) == LOOKUP


def test_a_text_that_suits_another_arm_gets_it_and_says_nothing_of_others():
    world, choice = World([3.0, 1.5, 2.0]), Choice(4, PLAIN)
    world.play(choice, 2000)
    choice.begin_text()
    choice.trial, choice.spare = False, 0.0
    ratios = [0.3, 1.0, 1.8, 1.0]
    before = choice.speeds[LOOKUP].rounds
    arms = {world.round(choice, ratios) for _ in range(2 * SPAN)}
    assert arms == {LOOKUP}
    assert choice.speeds[LOOKUP].rounds == before
    choice.begin_text()
    choice.spare = 0.0
    assert world.round(choice) == 0


def test_small_differences_on_one_text_change_nothing():
    world, choice = World([3.0, 1.5, 2.0]), Choice(4, PLAIN)
    world.play(choice, 2000)
    choice.begin_text()
    choice.trial, choice.spare = False, 0.0
    pace = choice.pace(LOOKUP) / choice.pace(0)
    ratios = [1.0, 1.0, 1.1 / pace, 1.0]
    assert {world.round(choice, ratios) for _ in range(SPAN)} == {0}


def test_requests_of_another_kind_start_from_what_is_known():
    world, choice = World([1.2, 3.0, 1.2]), Choice(4, PLAIN)
    world.play(choice, 1000)
    other = Choice(4, PLAIN)
    other.start_from(choice)
    assert other.current == 1
    # and unlearn it soon
    world.paces = [3.0, 0.8, 1.2]
    world.play(other, 2000)
    assert other.best([]) == 0


def test_trials_wait_for_saved_time_and_for_rounds():
    world, choice = World([3.0, 0.5, 0.5]), Choice(4, PLAIN)
    world.play(choice, 500)
    choice.spare = 0.0
    uses = list(world.uses)
    world.play(choice, RETRY)
    assert world.uses[0] - uses[0] == RETRY


def test_speed_on_a_text_is_shrunk_toward_the_mean():
    text = OnText()
    assert text.ratio == 1.0
    text.add(8.0, 2.0)
    assert 1.0 < text.ratio < 1.5
    for _ in range(100):
        text.add(8.0, 2.0)
    assert text.ratio > 2.5
