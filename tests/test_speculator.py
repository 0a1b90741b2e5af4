"""Faults of a drafter, and requests with their own method, rule or width."""

import warnings
from collections.abc import Callable

import pytest
import torch

from drafters import Foresight, RandomTree, StatesRecorder, known
from foreword.budget import FixedBudget
from foreword.draft.base import Drafter
from foreword.engine import Engine
from foreword.errors import ModelError
from foreword.types import Draft, DraftTree, Request, SamplingParams
from foreword.verify import rule
from running import (
    DTYPE,
    Answer,
    Case,
    draft,
    drafter,
    engine,
    finish,
    plain,
    prompts,
    target,
)

LENGTH = 24


def requests(count: int = 3, **params: object) -> list[Case]:
    values = dict(temperature=0.8, max_tokens=LENGTH, ignore_eos=True) | params
    params = [SamplingParams(**values | {"seed": 40 + i}) for i in range(count)]
    return [Case(prompts()[i % 5], one) for i, one in enumerate(params)]


class Allergic(Foresight):
    """Drafts the truth, but fails with requests that are `sick`."""

    def __init__(
        self, truth, sick: Callable[[Request], bool], where: str = "propose"
    ) -> None:
        super().__init__(truth)
        self.sick, self.where = sick, where

    def propose(self, batch, nodes):
        if self.where == "propose" and any(map(self.sick, batch.requests)):
            raise RuntimeError("this text makes me ill")
        return super().propose(batch, nodes)

    def on_hidden_states(self, sequence, start, hidden):
        if self.where == "read" and self.sick(sequence):
            raise RuntimeError("this text makes me ill")


def run(loop: Engine, asked: list[Case]) -> tuple[list[Answer], list[str]]:
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        got = finish(loop, asked)
    return got, [str(one.message) for one in said]


@pytest.mark.parametrize("where", ["propose", "read"])
def test_fault_in_one_request_ends_drafting_for_that_request_only(where):
    asked = requests()
    want = plain(target(DTYPE), asked)
    proposer = Allergic(known(want), lambda sequence: sequence.seed == 41, where)
    proposer.hidden_layers = (3,) if where == "read" else ()
    loop = engine(target(DTYPE), proposer, 4)
    got, said = run(loop, asked)
    assert [answer.said for answer in got] == [answer.said for answer in want]
    ill = "RuntimeError: this text makes me ill"
    assert [answer.request.undrafted for answer in got] == [None, ill, None]
    drafted = [answer.request.stats.drafted for answer in got]
    assert min(drafted[0], drafted[2]) > LENGTH / 2
    # what it read came after its first draft
    assert drafted[1] == (4 if where == "read" else 0)
    assert len(said) == 1
    assert "off for one request; the text is not affected" in said[0]


def test_a_fault_that_comes_late_leaves_what_was_drafted_before(monkeypatch):
    asked = requests(1)
    want = plain(target(DTYPE), asked)
    proposer = Allergic(known(want), lambda sequence: sequence.produced > 8)
    loop = engine(target(DTYPE), proposer, 4)
    (answer,), said = run(loop, asked)
    assert answer.said == want[0].said
    assert 0 < answer.request.stats.accepted < LENGTH / 2
    assert len(said) == 1


def test_repeated_faults_pause_drafter_and_it_is_tried_again_later(monkeypatch):
    monkeypatch.setattr("foreword.engine.failures.PAUSE", 30)
    asked = requests(5)
    want = plain(target(DTYPE), asked)
    ill = [True]
    loop = engine(target(DTYPE), Allergic(known(want), lambda _: ill[0]), 4)
    got, said = run(loop, asked)
    assert [answer.said for answer in got] == [answer.said for answer in want]
    assert sum(answer.request.stats.drafted for answer in got) == 0
    assert all(answer.request.undrafted for answer in got)
    assert len(said) == 1
    assert "failed 3 times and is off for all requests for 30 rounds" in said[0]
    ill[0] = False
    again, said = run(loop, asked[:1])  # the rest of the pause passes with it
    assert (again[0].said, said) == (want[0].said, [])
    assert again[0].request.stats.drafted == 0
    recovered, said = run(loop, asked)
    assert [answer.said for answer in recovered] == [answer.said for answer in want]
    assert min(answer.request.stats.accepted for answer in recovered) > 0
    assert said == []


def test_faults_long_ago_count_no_more(monkeypatch):
    monkeypatch.setattr("foreword.engine.failures.CLEAN", 3)
    asked = requests(5)
    want = plain(target(DTYPE), asked)
    proposer = Allergic(known(want), lambda sequence: sequence.seed in (41, 42, 43))
    loop = engine(target(DTYPE), proposer, 4, slots=1)
    for place in (1, 0, 2, 0, 3, 4):
        ((answer,), _) = run(loop, [asked[place]])
        assert answer.said == want[place].said
        assert (answer.request.stats.accepted > 0) == (place in (0, 4))


def test_hidden_states_that_are_not_there_are_missed_before_any_round():
    listener = StatesRecorder(lambda _: [], (99,))
    with pytest.raises(ModelError, match="states 0 to"):
        engine(target(DTYPE), listener, 4)


# ---- probabilities that are none


class Lying(Drafter):
    """Draws one token from a distribution and hands over another one."""

    def __init__(self, lie: Callable[[torch.Tensor], torch.Tensor]) -> None:
        self.lie = lie

    def propose(self, batch, nodes):
        vocab = target(DTYPE).vocab
        probs = torch.full((len(batch), 1, vocab), 1 / vocab)
        return Draft([DraftTree([7], [-1]) for _ in nodes], self.lie(probs))


@pytest.mark.sample(3)
@pytest.mark.parametrize("rule_name", ["rejection", "block"])
@pytest.mark.parametrize(
    "lie",
    [
        lambda p: 2 * p,
        lambda p: p - 2 * p,
        lambda p: p / 0,
        lambda p: p * torch.nan,
        lambda p: p * 0,
    ],
    ids=["of sum 2", "negative", "infinite", "not a number", "nothing"],
)
def test_probabilities_that_are_none_are_a_fault(lie, rule_name):
    asked = requests(1)
    loop = engine(target(DTYPE), Lying(lie), 1, rule=rule_name)
    got, said = run(loop, asked)
    (want,) = finish(engine(target(DTYPE), rule=rule_name), asked)
    assert got[0].tokens == want.tokens
    assert got[0].request.stats.drafted == 0
    assert "probs must be probabilities" in said[0]
    honest = engine(target(DTYPE), Lying(lambda p: p), 1, rule=rule_name)
    assert run(honest, asked)[0][0].request.stats.drafted > 0


# ---- interrupts


class Interrupted:
    """A reader that raises once, at the given token."""

    def __init__(self, reader, at: int, error: BaseException) -> None:
        self.reader, self.at, self.error = reader, at, error

    def push(self, token):
        self.at -= 1
        if self.at == 0:
            raise self.error
        return self.reader.push(token)

    def finish(self):
        return self.reader.finish()


@pytest.mark.sample(7)
@pytest.mark.parametrize(
    "error",
    [KeyboardInterrupt(), MemoryError("no room"), RuntimeError("a broken tokenizer")],
)
@pytest.mark.parametrize("hit", range(3))
@pytest.mark.parametrize("at", [1, 6])
def test_what_was_committed_before_and_after_interrupt_is_handed_over(error, hit, at):
    asked = requests()
    want = plain(target(DTYPE), asked)
    loop = engine(target(DTYPE), RandomTree(known(want), spoilt=0.3), 4)
    sequences = [one.request(target(DTYPE).eos) for one in asked]
    sequences[hit].reader = Interrupted(sequences[hit].reader, at, error)
    for sequence in sequences:
        loop.add(sequence)
    raised: list[BaseException] = []
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        while not loop.idle:
            try:
                loop.step()
            except (KeyboardInterrupt, MemoryError, RuntimeError) as caught:
                raised.append(caught)
    assert raised == [error]
    for place, (sequence, answer) in enumerate(zip(sequences, want, strict=True)):
        deltas = list(sequence.unread)
        said = [token for delta in deltas for token in delta.tokens]
        if place == hit:
            assert sequence.finish_reason == "abort"
            assert sequence.error is not None
            assert said == answer.tokens[: len(said)]
            assert len(said) < at
        else:
            assert (
                said,
                "".join(delta.text for delta in deltas),
                sequence.finish_reason,
            ) == answer.said
            assert sequence.stats.accepted > 0


@pytest.mark.parametrize("step", ["propose", "observe", "read"])
def test_an_interrupt_in_the_middle_of_a_round_loses_nothing(step, monkeypatch):
    asked = requests()
    want = plain(target(DTYPE), asked)
    proposer = RandomTree(known(want), spoilt=0.3)
    loop = engine(target(DTYPE), proposer, 4)
    owner = target(DTYPE) if step == "read" else proposer
    method, left = getattr(owner, step), [4]

    def interrupted(*given):
        left[0] -= 1
        if left[0] == 0:
            raise KeyboardInterrupt
        return method(*given)

    monkeypatch.setattr(owner, step, interrupted)
    sequences = [one.request(target(DTYPE).eos) for one in asked]
    for sequence in sequences:
        loop.add(sequence)
    with pytest.raises(KeyboardInterrupt):
        _to_the_end(loop)
    _to_the_end(loop)
    for sequence, answer in zip(sequences, want, strict=True):
        assert [
            token for delta in sequence.unread for token in delta.tokens
        ] == answer.tokens
        assert "".join(delta.text for delta in sequence.unread) == answer.text
        assert sequence.stats.accepted > 0


def _to_the_end(loop: Engine) -> None:
    while not loop.idle:
        loop.step()


# ---- several speculators in one engine


def test_sequences_of_several_speculators_share_rounds_and_keep_their_texts():
    asked = requests(6, temperature=0.7)
    want = plain(target(DTYPE), asked)
    loop = engine(target(DTYPE), drafter("lm", DTYPE), 4, chunk=16)
    recorder = StatesRecorder(known(want), (0, 5))
    tree = RandomTree(known(want), spoilt=0.3)
    ways = [
        None,
        loop.speculator(drafter("ngram", DTYPE), rule("match"), FixedBudget(3)),
        loop.speculator(drafter("eagle", DTYPE), rule("match"), FixedBudget(6)),
        loop.speculator(drafter("none", DTYPE), rule("match"), FixedBudget(0)),
        loop.speculator(recorder, rule("match"), FixedBudget(4)),
        loop.speculator(tree, rule("match"), FixedBudget(8)),
    ]
    sequences = [one.request(target(DTYPE).eos) for one in asked]
    rounds = 0
    for sequence, way in zip(sequences, ways, strict=True):
        loop.add(sequence, way)
    while not loop.idle:
        loop.step()
        rounds += 1
    for sequence, answer in zip(sequences, want, strict=True):
        assert sequence.tokens == answer.request.tokens
        assert sequence.undrafted is None
    assert rounds <= 2 * LENGTH, "they run together"
    assert all(sequences[place].stats.accepted > 0 for place in (0, 4, 5))
    assert sequences[3].stats.drafted == 0
    seen = torch.cat(recorder.seen[sequences[4].id])
    alone = StatesRecorder(known(want), (0, 5))
    single = finish(engine(target(DTYPE), alone, 4), [asked[4]])[0]
    want = torch.cat(alone.seen[single.request.id])
    torch.testing.assert_close(seen, want, atol=1e-3, rtol=1e-4)


@pytest.mark.sample(3)
@pytest.mark.parametrize("name", ["rejection", "block", "traversal"])
def test_request_may_have_rule_of_its_own_beside_others(name):
    """Alone or in a batch, a rule's draws are keyed by the request: one text."""
    (one, *others) = requests(3)
    alone = finish(engine(target(DTYPE), drafter("lm", DTYPE), 4, rule=name), [one])[0]
    loop = engine(target(DTYPE), drafter("lm", DTYPE), 4)
    sequences = [request.request(target(DTYPE).eos) for request in (one, *others)]
    own = loop.speculator(drafter("lm", DTYPE), rule(name), FixedBudget(4))
    loop.add(sequences[0], own)
    for sequence in sequences[1:]:
        loop.add(sequence)
    _to_the_end(loop)
    assert sequences[0].tokens == alone.request.tokens
    assert sequences[0].stats.accepted == alone.request.stats.accepted > 0
    want = plain(target(DTYPE), others)
    for sequence, answer in zip(sequences[1:], want, strict=True):
        assert sequence.tokens == answer.request.tokens


def test_one_drafter_may_serve_two_speculators():
    shared = drafter("lm", DTYPE)
    asked = requests(4)
    loop = engine(target(DTYPE), shared, 4)
    other = loop.speculator(shared, rule("match"), FixedBudget(8))
    sequences = [one.request(target(DTYPE).eos) for one in asked]
    for place, sequence in enumerate(sequences):
        loop.add(sequence, other if place % 2 else None)
    _to_the_end(loop)
    for sequence, answer in zip(sequences, plain(target(DTYPE), asked), strict=True):
        assert sequence.tokens == answer.request.tokens
        assert sequence.stats.accepted > 0
    assert draft(DTYPE).vocab == target(DTYPE).vocab
