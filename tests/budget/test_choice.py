"""Which method is used, in a world of given costs and drawn agreement."""

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from random import Random

import pytest

from foreword.budget.choice import TRIAL, UNPRICED, Choice, Text
from foreword.budget.estimates import BUDGET, DEPTHS, SHARE, Agreement, OnText, Price
from foreword.engine.reading import BLOCK, LARGEST, READING, Allowance, runs
from grids import slow_case

LENGTH = 128
Rate = Callable[[int], float]
"""Agreement at a token of the world's text."""


@dataclass
class Method:
    """A method in numbers, in rounds of plain decoding."""

    rate: Rate
    each: float = 0.1
    """A draft token, its row included."""
    start: float = 0.02
    reading: float = 0.0125
    """A token that another method wrote, and half a draft token for each block."""


@dataclass
class World:
    """Texts of LENGTH tokens that one choice answers, one after the other."""

    methods: list[Method]
    reads: bool = True
    """Whether methods that are not in use read what others write."""
    lie: float = 1.0
    """What a round seems to take, over what it takes."""
    choice: Choice = field(init=False)
    uses: Counter[int] = field(default_factory=Counter)
    spent: float = 0.0
    tokens: int = 0
    reading: float = 0.0
    """Time of reading in `spent`."""
    announced: int = 0
    """Plain rounds that `stays_plain` announced."""

    def __post_init__(self) -> None:
        self.choice = Choice(len(self.methods))
        self.dice = Random(4)
        self.allowance = Allowance(READING)

    def play(self, texts: int) -> float:
        """Answer so many texts; return the time of a token."""
        spent, tokens = self.spent, self.tokens
        for _ in range(texts):
            self.answer()
        return (self.spent - spent) / (self.tokens - tokens)

    def answer(self) -> None:
        choice, text = self.choice, self.choice.begin()
        bits = [
            [self.dice.random() < one.rate(self.tokens + at) for at in range(LENGTH)]
            for one in self.methods
        ]
        read = [0] * len(bits)
        at, stays = 0, False
        while at < LENGTH:
            if self.reads:
                self.read(text, bits, at, read)
                stays = False
            unread = [at - one if at - one > DEPTHS else 0 for one in read]
            number = text.method = choice.decide([text], unread.__getitem__)
            self.uses[number] += 1
            assert number == choice.plain or not stays
            self.announced += stays
            stays = number == choice.plain and choice.stays_plain
            if number == choice.plain:
                at, self.spent = at + 1, self.spent + 1
                choice.pass_plain()
                continue
            method = self.methods[number]
            depth = min(self.length(number, text), LENGTH - at - 1)
            took = 1.0 + method.start + method.each * depth
            took += method.reading * unread[number]
            agreed = bits[number][at : at + depth]
            accepted = (*agreed, False).index(False)
            choice.saw(text, number, depth, accepted)
            choice.learn(number, 1 + accepted, depth, self.lie * took, unread[number])
            at += accepted + 1
            self.spent += took
            read[number] = at
        self.tokens += LENGTH
        choice.end(LENGTH)

    def length(self, number: int, text: Text) -> int:
        """Return the length of the best draft, as a budget would."""
        method, most, best, earned = self.methods[number], 0.0, 1, 0.0
        for depth, reached in enumerate(self.choice.reached(text, number), 1):
            earned += reached
            speed = (1 + earned) / (1 + method.start + method.each * depth)
            if speed > most:
                most, best = speed, depth
        return best

    def read(
        self, text: Text, bits: list[list[bool]], at: int, read: list[int]
    ) -> None:
        self.allowance.grant(1.0)
        if self.choice.guard.stops_models:
            return
        for number, method in enumerate(self.methods):
            behind = at - read[number]
            took = method.reading * behind + method.each / 2
            block = LARGEST if read[number] else BLOCK
            due = behind >= block and self.allowance.covers(took)
            if number == text.method or not due:
                continue
            self.allowance.spend(took)
            self.spent += took
            self.reading += took
            self.choice.guard.charge(took)
            for accepted in runs(bits[number][read[number] : at]):
                self.choice.saw(text, number, DEPTHS, accepted)
            read[number] = at
            self.choice.reconsider()


def always(rate: float) -> Rate:
    return lambda _: rate


def turns(high: float, low: float, tokens: int) -> Rate:
    """Agreement that changes after so many tokens."""
    return lambda at: high if at // tokens % 2 == 0 else low


def best_of(method: Method, rate: float) -> float:
    """The least time of a token at this agreement, by a policy that knows it."""
    return min(
        (1.0 + (method.start + method.each * depth if depth else 0.0))
        / sum(rate**one for one in range(depth + 1))
        for depth in range(DEPTHS + 1)
    )


@pytest.mark.parametrize("fastest", range(3))
def test_the_fastest_method_is_used(fastest):
    rates = [0.8 if number == fastest else 0.4 for number in range(3)]
    world = World([Method(always(rate)) for rate in rates])
    took = world.play(60)
    assert world.uses[fastest] > 0.9 * sum(world.uses.values())
    assert took < 1.06 * best_of(world.methods[fastest], 0.8)


def test_plain_decoding_is_used_where_every_method_loses():
    world = World([Method(always(0.05)), Method(always(0.1), each=0.4)])
    took = world.play(60)
    assert world.uses[2] > 0.9 * sum(world.uses.values())
    assert took < 1 + (2 * BUDGET + 2) / world.tokens + 2 * SHARE + READING
    assert world.uses[0] > 0 < world.uses[1], "each was tried"


@pytest.mark.parametrize(
    ("high", "low", "tokens", "most"),
    [
        slow_case(0.8, 0.0, 50, 1.30),
        (0.8, 0.0, 200, 1.16),
        slow_case(0.8, 0.0, 1000, 1.06),
        (0.8, 0.25, 100, 1.14),
        (0.8, 0.8, 100, 1.05),
        (0.3, 0.3, 100, 1.06),
    ],
)
def test_a_text_that_changes_is_followed(high, low, tokens, most):
    """Regret against a policy that knows the agreement at every token."""
    method = Method(turns(high, low, tokens))
    known = (best_of(method, high) + best_of(method, low)) / 2
    assert World([method]).play(120) < most * known


def test_reading_finds_the_text_that_suits_a_method():
    """Without it, nothing is known of a text on which nothing is drafted."""
    late = {}
    for reads in (True, False):
        method = Method(turns(0.8, 0.0, 200))
        late[reads] = World([method], reads=reads).play(80)
    assert late[True] < late[False]


def test_reading_stays_within_its_share():
    world = World([Method(always(0.02)), Method(always(0.02))])
    world.play(100)
    assert 0 < world.reading < 2 * READING * world.spent


@pytest.mark.parametrize("lie", [0.5, 1.0, 2.0])
@pytest.mark.parametrize("rate", [0.0, 0.3, 0.9])
def test_losses_are_bounded_whatever_the_estimates_say(lie, rate):
    """Costs that lie by a factor of two hide a loss of the same factor, not more."""
    world = World([Method(always(rate), each=0.3)], lie=lie)
    world.play(60)
    # where a round is believed to take half of what it takes, it may take twice
    least = BUDGET + SHARE * world.spent + 4
    allowed = least if lie >= 1.0 else 1.1 * world.tokens
    assert world.spent - world.tokens < allowed


def test_an_adversary_that_knows_the_policy_wins_little():
    """Draft tokens agree only where nothing is drafted."""
    choice = Choice(1)
    spent = tokens = 0.0
    for _ in range(20):
        text = choice.begin()
        for _ in range(400):
            number = choice.decide([text], lambda _: 0)
            if number == choice.plain:
                choice.saw(text, 0, DEPTHS, DEPTHS)
                choice.pass_plain()
                took = 1.0
            else:
                choice.saw(text, 0, 2, 0)
                took = 1.25
                choice.learn(0, 1.0, 2, took, 0)
            spent += took
            tokens += 1
    assert spent - tokens < BUDGET + SHARE * spent + 1.0


def test_stalls_of_the_machine_end_nothing():
    world = World([Method(always(0.8))])
    world.play(20)
    for _ in range(3):
        world.choice.learn(0, 3.0, 4, 10_000.0, 0)
        world.choice.learn(0, float("nan"), 4, 1.0, 0)
        world.choice.learn(0, 1.0, 4, float("inf"), 0)
    assert world.play(40) < 1.1 * best_of(world.methods[0], 0.8)


@pytest.mark.parametrize("stalled", range(1, 6))
def test_a_stall_among_the_first_rounds_ends_nothing(stalled):
    choice, text = Choice(1), Choice(1).begin()
    drafted = 0
    for _ in range(60):
        text.method = choice.decide([text], lambda _: 0)
        if text.method == choice.plain:
            choice.pass_plain()
            continue
        choice.saw(text, 0, 3, 2)
        drafted += 1
        choice.learn(0, 3.0, 3, 20.0 if drafted == 1 + stalled else 2.0, 0)
    assert drafted > 40


def test_plain_decoding_is_timed_where_drafts_are_always_used():
    choice = Choice(1)
    text, plain = choice.begin(), 0
    for _ in range(1000):
        text.method = choice.decide([text], lambda _: 0)
        if text.method == choice.plain:
            plain += 1
            choice.pass_plain()
            continue
        choice.saw(text, 0, 3, 2)
        choice.learn(0, 3.0, 3, 2.0, 0)
    assert plain % TRIAL == 0 < plain < 2 * SHARE * 1000 * 3


def test_most_plain_rounds_are_announced():
    world = World([Method(turns(0.9, 0.1, 500))], reads=False)
    world.play(40)
    plain = world.uses[world.choice.plain]
    assert world.uses[0] > 100
    assert 0.7 * plain < world.announced < plain


def test_a_method_that_lost_on_one_text_is_tried_on_the_next():
    choice = Choice(1)
    for _ in range(2):
        text = choice.begin()
        assert choice.decide([text], lambda _: 0) == 0, "a text is new"
        for turn in range(60):
            text.method = choice.decide([text], lambda _: 0)
            if text.method == choice.plain:
                choice.pass_plain()
                continue
            accepted = turn % 2
            choice.saw(text, 0, 1, accepted)
            choice.learn(0, 1.0 + accepted, 1, 1.7, 0)
        assert choice.current == choice.plain


def test_a_method_that_becomes_cheap_is_found():
    world = World([Method(always(0.8), each=2.0)])
    world.play(20)
    assert world.uses[1] > 0.9 * sum(world.uses.values())
    world.methods[0].each = 0.1
    world.play(60)
    uses = Counter(world.uses)
    world.play(20)
    assert world.uses[0] - uses[0] > world.uses[1] - uses[1]


def test_a_method_that_may_not_draft_is_left_out():
    choice = Choice(2)
    text = choice.begin()
    assert choice.decide([text], lambda _: 0, out=[0]) == 1
    assert choice.decide([text], lambda _: 0, out=[1]) == 0, "at once"
    assert choice.decide([text], lambda _: 0, out=[0, 1]) == choice.plain


def test_what_a_drafter_has_to_read_counts():
    choice = Choice(1)
    choice.length = 16.0
    text = choice.begin()
    for _ in range(3):
        choice.learn(0, 2.0, 2, 1.2, 0)
    choice.prices[0].unread.learn(100, 10.0)
    assert choice.decide([text], lambda _: 0) == 0
    choice.begin()
    assert choice.decide([text], lambda _: 2000) == choice.plain


def test_requests_together_choose_by_their_sum():
    choice = Choice(1)
    good, bad = choice.begin(), choice.begin()
    for _ in range(9):
        choice.learn(0, 1.5, 2, 1.4, 0)
        choice.saw(good, 0, 2, 2)
        choice.saw(bad, 0, 2, 0)
    fast, slow = (choice.speed([text], 0) for text in (good, bad))
    assert slow < choice.speed([good, bad], 0) < fast


def test_kinds_and_processes_begin_with_what_is_known():
    world = World([Method(always(0.9)), Method(always(0.2))])
    world.play(30)
    known = world.choice
    other = Choice(2)
    other.start_from(known)
    rates = other.agreement[0].rates
    assert rates[0] == pytest.approx(0.9, abs=0.1)
    later = Choice(2)
    assert later.state(0) == []
    for number in (0, 1):
        later.recall(number, known.state(number))
    text = later.begin()
    assert later.speed([text], 0) > 2 * later.speed([text], 1)
    assert later.decide([text], lambda _: 0) == 0
    assert later.prices[0].spent(4) == pytest.approx(1.42, abs=0.2)


def test_a_draft_is_as_long_as_pays_on_its_text():
    choice = Choice(1)
    easy, hard = choice.begin(), choice.begin()
    choice.row = 0.01
    assert choice.nodes(easy, 0) == UNPRICED, "before any was timed"
    for depth in (2, 8, 4, 12, 3):
        choice.learn(0, 1.0, depth, 1.02 + 0.1 * depth, 0)
    for _ in range(40):
        choice.saw(easy, 0, 4, 4)
        choice.saw(hard, 0, 4, 1)
    assert choice.nodes(easy, 0) > choice.nodes(hard, 0) >= 1
    for _ in range(400):
        choice.saw(easy, 0, DEPTHS, DEPTHS)
    assert choice.nodes(easy, 0) == DEPTHS


def test_acceptance_on_a_text_is_shrunk_toward_that_on_all():
    agreement = Agreement()
    for _ in range(200):
        agreement.add(2, 1)
    first, second, *deeper = agreement.rates
    assert first > 0.95
    assert second < 0.1
    assert deeper[0] < 0.1, "inherited"
    text = OnText()
    assert text.odds() == 1.0
    for _ in range(3):
        text.add(2, 2, [0.5, 0.5])
    assert 1.0 < text.odds() < 3.0
    for _ in range(60):
        text.add(2, 2, [0.5, 0.5])
    assert text.odds() > 2.0


def test_price_of_a_round_is_a_line_and_reading_is_apart():
    price = Price()
    price.learn(2, 50.0, 0)
    assert not price.known, "the first round of a process is slow"
    assert price.spent(3, row=0.1) == pytest.approx(1.3)
    for depth in (1, 6, 2, 4, 8, 3):
        price.learn(depth, 1.1 + 0.05 * depth, 0)
    assert price.spent(5) == pytest.approx(1.35)
    for unread in (40, 10, 80, 2):
        price.learn(5, 1.55 + 0.05 * unread, unread)
    assert price.reading(20) == pytest.approx(1.2), "a forward, and each token"
    assert price.reading(0) == 0


def test_a_looked_up_draft_must_gain_more_than_the_method_in_use():
    choice = Choice(2)
    choice.row = 0.05
    text = choice.begin()
    assert choice.decide([text], lambda _: 0, out=[0, 1]) == choice.plain
    choice.speeds = {choice.plain: 1.0}
    assert choice.gain(0.5, 4, 1) == pytest.approx(0.3)
    assert choice.gain(0.5, 4, 4) < 0, "rows of a batch are dear"
    choice.speeds, choice.current = {0: 2.0}, 0
    assert choice.gain(0.5, 4, 1) < 0
    before = choice.gain(4.0, 4, 1)
    choice.prices[0].unread.learn(5, 2.0)
    assert choice.gain(4.0, 4, 1) < before - 2.0, "the draft model reads it after"


def test_runs_of_agreement_are_rounds_of_chains():
    agrees = [True, True, False, False, True] + [True] * 12
    assert runs(agrees, 8) == [2, 0, 8]
    assert runs([]) == []
