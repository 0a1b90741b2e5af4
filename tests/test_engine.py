"""The loop: what it counts, where it ends a text, and broken drafters."""

import warnings
from dataclasses import replace
from functools import cache

import pytest
import torch

from drafters import Breaking, Foresight, RandomTree, StatesRecorder, known
from foreword.budget import FixedBudget
from foreword.draft.base import chosen
from foreword.engine import Engine
from foreword.errors import InvalidRequest
from foreword.model import Read
from foreword.sampling.streams import NoiseStreams
from foreword.types import Batch, Draft, DraftTree, Request, SamplingParams
from running import (
    DTYPE,
    Answer,
    Case,
    draft,
    drafter,
    engine,
    finish,
    outputs,
    plain,
    prompts,
    target,
    tokenizer,
)


def requests(**params: object) -> list[Case]:
    values = dict(temperature=0.0, max_tokens=24, ignore_eos=True) | params
    return [Case(prompt, SamplingParams(**values)) for prompt in prompts()[:3]]


@cache
def truth() -> list[Answer]:
    """What the target writes when nothing ends it."""
    return plain(target(DTYPE), requests(max_tokens=40))


def run(loop: Engine, asked: list[Case]) -> list[tuple]:
    return outputs(finish(loop, asked))


# ---- what is counted


@pytest.mark.parametrize("make", [Foresight, RandomTree])
def test_the_statistics_add_up(make):
    loop = engine(target(DTYPE), make(known(truth()), spoilt=0.3), 4, chunk=4)
    for answer in finish(loop, requests()):
        stats, deltas = answer.request.stats, answer.deltas
        assert stats.rounds == len(deltas)
        lengths = [len(delta.tokens) for delta in deltas]
        assert stats.tokens == len(answer.tokens) == sum(lengths) == 24
        assert stats.drafted == sum(delta.drafted for delta in deltas)
        accepted = [delta.origins.count("accepted") for delta in deltas]
        assert stats.accepted == sum(accepted) > 0
        assert stats.tokens == stats.rounds + stats.accepted
        assert sum(stats.accepted_at) == stats.accepted
        pairs = zip(stats.accepted_at, stats.drafted_at, strict=True)
        assert all(kept <= scored for kept, scored in pairs)
        assert stats.accepted_at == sorted(stats.accepted_at, reverse=True)
        assert stats.tokens_per_pass == stats.tokens / stats.rounds
        assert 0 < stats.acceptance == stats.accepted / stats.drafted < 1
        whole = sum(stats.drafted_at) == stats.drafted
        assert whole if make is Foresight else sum(stats.drafted_at) < stats.drafted
        steps = (stats.propose, stats.score, stats.verify, stats.commit, stats.prefill)
        assert min(steps) > 0


def test_chain_counts_draft_token_at_every_depth_it_reaches():
    loop = engine(target(DTYPE), Foresight(known(truth())), 4)
    (answer,) = finish(loop, requests(max_tokens=16)[:1])
    # Rounds of 4 draft tokens + 1: 5 + 5 + 5, then one token is left and no draft token
    # could be of use.
    stats = answer.request.stats
    assert stats.drafted_at == stats.accepted_at == [3, 3, 3, 3]
    assert [len(delta.tokens) for delta in answer.deltas] == [5, 5, 5, 1]
    assert answer.deltas[0].origins == ("accepted",) * 4 + ("bonus",)


def test_budget_ends_with_the_text():
    loop = engine(target(DTYPE), Foresight(known(truth())), 8)
    (answer,) = finish(loop, requests(max_tokens=7)[:1])
    assert [delta.drafted for delta in answer.deltas] == [6]
    assert answer.request.stats.rounds == 1


@pytest.mark.sample(5)
@pytest.mark.parametrize("rule", ["match", "traversal"])
@pytest.mark.parametrize("temperature", [0.0, 1.0])
@pytest.mark.parametrize("left", [2, 3, 4])
def test_few_tokens_are_left_so_trees_are_low_but_as_wide_as_ever(
    left, temperature, rule
):
    asked = requests(max_tokens=left, temperature=temperature)
    got = finish(engine(target(DTYPE), drafter("lm", DTYPE), 16, rule=rule), asked)
    for answer in got:
        assert answer.deltas[0].drafted > 2 * (left - 1)
        assert len(answer.request.stats.drafted_at) == left - 1
        assert len(answer.tokens) == left
    if rule == "match" or not temperature:
        assert outputs(got) == outputs(plain(target(DTYPE), asked))


@pytest.mark.parametrize(
    ("left", "context", "deep"),
    [(5, 99, 4), (1, 99, 0), (50, 13, 2), (50, 11, 0), (50, 9, 0)],
)
def test_reach_ends_with_the_text_and_the_context(left, context, deep):
    sequence = Request(1, [5] * 10, 8, SamplingParams(max_tokens=left + 2), seed=0)
    batch = Batch((sequence,), NoiseStreams(9, shared=True), context=context)
    assert batch.reach(sequence) == deep


def test_a_chain_that_is_longer_than_the_text_is_cut():
    class Long(Foresight):
        def propose(self, batch, nodes):
            return chosen(self.chains(batch, nodes))

    loop = engine(target(DTYPE), Long(known(truth())), 16)
    got = finish(loop, requests(max_tokens=4))
    drafted = [[delta.drafted for delta in answer.deltas] for answer in got]
    assert drafted == [[3]] * 3


# ---- where a text ends


@pytest.mark.sample(5)
@pytest.mark.parametrize("make", [Foresight, RandomTree])
@pytest.mark.parametrize("place", range(1, 8))
def test_a_text_ends_exactly_inside_an_accepted_block(place, make):
    """The draft tokens are right beyond the end; nothing after it may be seen."""
    for row, answer in enumerate(truth()):
        token = answer.tokens[place]
        ends = (
            dict(stop_token_ids=(token,)),
            dict(max_tokens=place + 1),
            dict(stop=(piece(answer, place),)),
        )
        for end in ends:
            asked = requests(**({"max_tokens": 40} | end))[row : row + 1]
            want = plain(target(DTYPE), asked)
            assert len(want[0].tokens) <= place + 1
            got = finish(engine(target(DTYPE), make(known(truth())), 8), asked)
            assert outputs(got) == outputs(want)
            *before, last = got[0].deltas
            assert len(last.origins) <= len(last.tokens)
            assert {delta.finish_reason for delta in before} <= {None}


def piece(answer: Answer, place: int) -> str:
    """A stop string that begins inside one token and ends inside the next."""
    text = tokenizer().decode(answer.tokens[: place + 1])
    return text[-3:]


def test_eos_ends_a_text_unless_it_is_ignored():
    (free,) = truth()[:1]
    eos = frozenset([free.tokens[5]])
    for ignored in (False, True):
        request = requests(max_tokens=20, ignore_eos=ignored)[0]
        sequence = request.request(eos)
        loop = engine(target(DTYPE), Foresight(known(truth())), 8)
        loop.add(sequence)
        while not loop.idle:
            loop.step()
        first = free.tokens.index(free.tokens[5]) + 1
        assert sequence.produced == (20 if ignored else first)
        assert sequence.finish_reason == ("length" if ignored else "stop")


def test_the_last_token_of_the_context_can_be_written():
    room = target(DTYPE).context
    text = (prompts()[3] * 60)[: room - 6]
    request = Case(text, SamplingParams(temperature=0, max_tokens=6, ignore_eos=True))
    want = plain(target(DTYPE), [request])
    got = finish(engine(target(DTYPE), drafter("ngram", DTYPE), 8), [request])
    assert got[0].said == want[0].said
    assert len(got[0].tokens) == 6


@pytest.mark.sample(3)
@pytest.mark.parametrize("name", ["lm", "recycle", "tree", "lookahead"])
@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_at_edge_of_context_only_places_that_exist_are_read(
    name, temperature, monkeypatch
):
    """A draft token may lie in any row, but at a place that the model knows."""
    context, places, rows = target(DTYPE).context, [], []
    for model in (target(DTYPE), draft(DTYPE)):
        read = model.backend.read

        def noted(reads, read=read):
            places.extend(one.past + max(one.depths) for one in reads)
            rows.extend(one.start + len(one.tokens) for one in reads)
            return read(reads)

        monkeypatch.setattr(model.backend, "read", noted)
    text = (prompts()[3] * 60)[: context - 9]
    options = dict(seed=1, max_tokens=9, ignore_eos=True)
    asked = [Case(text, SamplingParams(temperature=temperature, **options))]
    want = plain(target(DTYPE), asked)
    tree = RandomTree(known(want), spoilt=0.3)
    proposer = tree if name == "tree" else drafter(name, DTYPE)
    got = finish(engine(target(DTYPE), proposer, 16), asked)
    assert outputs(got) == outputs(want)
    assert max(places) < context < max(rows)


# ---- a drafter that breaks


def raises(batch, nodes):
    raise RuntimeError("the drafter broke")


def too_many(batch, nodes):
    return chosen([[5] * (count + 1) for count in nodes])


def foreign_ids(batch, nodes):
    return chosen([[10**6] * count for count in nodes])


def too_few_rows(batch, nodes):
    return chosen([[5] * count for count in nodes[:-1]])


def wrong_shapes(batch, nodes):
    tokens = torch.full((len(nodes), 2), 5)
    return Draft.padded(tokens, torch.tensor([[-1, 0]]), torch.full((len(nodes),), 2))


def counts_beyond_its_width(batch, nodes):
    draft = chosen([[5] for _ in nodes])
    return Draft.padded(draft.tokens, draft.parents, torch.tensor(nodes))


def negative_counts(batch, nodes):
    draft = chosen([[5] * count for count in nodes])
    return Draft.padded(draft.tokens, draft.parents, -draft.count)


def children_before_parents(batch, nodes):
    draft = chosen([[5] * count for count in nodes])
    return Draft.padded(draft.tokens, draft.parents + 2, draft.count, chain=False)


def draft_tokens_without_parents(batch, nodes):
    return Draft([DraftTree([5] * count, []) for count in nodes])


def halves(batch, nodes):
    chains = [list(range(-1, count - 1)) for count in nodes]
    return Draft([DraftTree([5.5] * len(chain), chain) for chain in chains])


def no_draft(batch, nodes):
    return None


GARBAGE = (
    raises,
    too_many,
    foreign_ids,
    too_few_rows,
    wrong_shapes,
    counts_beyond_its_width,
    negative_counts,
    children_before_parents,
    draft_tokens_without_parents,
    halves,
    no_draft,
)


@pytest.mark.sample(2)
@pytest.mark.usefixtures("unchecked")
@pytest.mark.parametrize("wrong", GARBAGE)
def test_whatever_a_drafter_proposes_the_text_goes_on(wrong):
    broken(Breaking(known(truth()), wrong, where="propose"))


@pytest.mark.parametrize("where", ["observe", "release"])
def test_a_drafter_that_breaks_elsewhere_does_no_harm_either(where):
    broken(Breaking(known(truth()), raises, where=where))


class Reusing(Foresight):
    """Proposes right tokens, in lists that it uses again as soon as it may."""

    last = DraftTree()

    def propose(self, batch, nodes):
        (self.last,) = super().propose(batch, nodes).trees
        return Draft([self.last])

    def observe(self, batch, draft, verdict, scores):
        super().observe(batch, draft, verdict, scores)
        self.last.tokens.clear()
        self.last.parents.clear()


def test_a_drafter_may_use_its_lists_again():
    one = requests()[:1]
    answer = truth()[0]
    loop = engine(target(DTYPE), Reusing(known(truth())), 3)
    text = tokenizer().decode(answer.tokens[:24])
    assert run(loop, one) == [(answer.tokens[:24], text, "length")]
    assert not loop.failed


def broken(proposer: Breaking) -> None:
    loop = engine(target(DTYPE), proposer, 3)
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        got = run(loop, requests())
    tokens = [answer.tokens[:24] for answer in truth()]
    assert got == [(one, tokenizer().decode(one), "length") for one in tokens]
    assert 1 <= len(said) <= 2, [str(one.message) for one in said]
    assert {one.category for one in said} == {RuntimeWarning}
    assert all("the text is not affected" in str(one.message) for one in said)
    assert "off for all requests" in str(said[-1].message)
    assert loop.failed
    calls = proposer.calls
    assert run(loop, requests()) == got
    assert proposer.calls == calls, "a drafter that has failed is not asked again"


# ---- what a drafter learns from a budget


def test_drafter_gets_floors_and_pace():
    class Strict(FixedBudget):
        def priced(self, batch):
            return replace(batch, floor=0.25, expand=0.5, pace=40.0)

    received = []

    class Told(Foresight):
        def propose(self, batch, nodes):
            received.append((batch.floor, batch.expand, batch.pace))
            return super().propose(batch, nodes)

    loop = engine(target(DTYPE), Told(known(truth())), Strict(3))
    assert run(loop, requests()) == outputs(plain(target(DTYPE), requests()))
    assert loop.failed is None
    assert set(received) == {(0.25, 0.5, 40.0)}


# ---- coming and going


def added(loop: Engine, asked: list[Case]) -> list[Request]:
    sequences = [request.request(loop.target.eos) for request in asked]
    for sequence in sequences:
        loop.add(sequence)
    return sequences


def test_every_sequence_is_released_and_every_round_observed():
    proposer = Foresight(known(truth()), spoilt=0.5)
    loop = engine(target(DTYPE), proposer, 3)
    answers = finish(loop, requests())
    assert proposer.released == len(answers)
    assert proposer.observed >= max(len(answer.deltas) for answer in answers)


@pytest.mark.parametrize("spoilt", [0.0, 0.3])
def test_hidden_states_come_once_and_in_order(spoilt):
    listener = StatesRecorder(known(truth()), (0, 5), spoilt)
    loop = engine(target(DTYPE), listener, 6, chunk=7)
    for answer in finish(loop, requests()):
        read = answer.request.tokens[: answer.request.cached]
        seen = torch.cat(listener.seen[answer.request.id])
        assert torch.equal(seen[:, :384], target(DTYPE).embed(torch.tensor(read)))
        target(DTYPE).open(-3, len(read))
        _, alone = target(DTYPE).read_hidden([Read(-3, 0, read)], (5,))
        torch.testing.assert_close(seen[:, 384:], alone, atol=1e-3, rtol=1e-4)
        target(DTYPE).close(-3)
    assert loop.failed is None


def test_failure_on_hidden_states_does_no_harm():
    def deaf(*_: object) -> None:
        raise RuntimeError("too loud")

    listener = StatesRecorder(known(truth()), (3,))
    listener.on_hidden_states = deaf
    loop = engine(target(DTYPE), listener, 6)
    with pytest.warns(RuntimeWarning, match="too loud"):
        assert run(loop, requests()) == run(engine(target(DTYPE)), requests())


def test_a_sequence_given_up_leaves_the_others_as_they_are():
    loop = engine(target(DTYPE), drafter("lm", DTYPE), 4, slots=2)
    first, second, third = added(loop, requests())
    for _ in range(3):
        loop.step()
    loop.abort(first)
    loop.abort(third)  # it was still waiting
    while not loop.idle:
        assert {delta.id for delta in loop.step()} == {second.id}
    assert first.finish_reason == third.finish_reason == "abort"
    assert second.tokens[second.prompt :] == truth()[1].tokens[:24]
    assert loop.step() == []


def test_position_where_nothing_is_allowed_is_error_that_says_so():
    def nothing(tokens, scores):
        return torch.full_like(scores, -torch.inf)

    with pytest.raises(InvalidRequest, match=r"every token is forbidden.*processors"):
        finish(engine(target(DTYPE)), requests(processors=(nothing,)))


@pytest.mark.parametrize("rule", ["match", "rejection"])
def test_error_of_one_request_leaves_others_their_round(rule):
    """The failed one gets its error; every other one its tokens of that very round."""

    broken = []

    def breaks(tokens, scores):
        if broken:
            raise RuntimeError("this processor is broken")
        return scores

    loop = engine(target(DTYPE), drafter("lm", DTYPE), 3, rule=rule)
    several = requests(max_tokens=16)
    several[1] = requests(max_tokens=16, processors=(breaks,))[1]
    first, failing, last = added(loop, several)
    loop.step()
    before = [first.produced, last.produced]
    broken.append(True)
    with pytest.raises(RuntimeError, match="this processor is broken"):
        loop.step()
    assert (first.produced > before[0], last.produced > before[1]) == (True, True)
    assert failing.finish_reason == "abort"
    assert first.finish_reason is last.finish_reason is None
    assert isinstance(failing.error, RuntimeError)
    while not loop.idle:
        loop.step()
    for sequence, answer in ((first, truth()[0]), (last, truth()[2])):
        assert sequence.tokens[sequence.prompt :] == answer.tokens[:16]


@pytest.mark.sample(10)
@pytest.mark.parametrize("rule", ["match", "rejection", "block"])
@pytest.mark.parametrize("drafter_name", ["lm", "wrong", "tree"])
@pytest.mark.parametrize("fault", ["raises", "forbids all"])
def test_a_processor_fails_where_the_text_goes_and_nowhere_else(
    fault, drafter_name, rule
):
    """On a draft token off the text it is not our business: all goes on."""
    pairs = zip(prompts(), truth(), strict=False)
    texts = [[*prompt, *answer.tokens] for prompt, answer in pairs]

    def fussy(tokens, scores):
        text = tokens[0].tolist()
        if any(known[: len(text)] == text for known in texts):
            return scores
        if fault == "raises":
            raise RuntimeError("that is not the text")
        return torch.full_like(scores, -torch.inf)

    asked = requests(processors=(fussy,), max_tokens=20)
    kind = RandomTree if rule == "match" else Foresight
    proposer = {
        "lm": lambda: drafter("lm", DTYPE),
        "wrong": lambda: Foresight(known(truth()), spoilt=0.5),
        "tree": lambda: kind(known(truth()), spoilt=0.3),
    }[drafter_name]()
    loop = engine(target(DTYPE), proposer, 4, rule=rule)
    got = finish(loop, asked)
    for answer, whole in zip(got, truth(), strict=True):
        assert answer.tokens == whole.tokens[:20]
    assert loop.failed is None
    assert sum(answer.request.stats.accepted for answer in got) > 0
    beyond = requests(processors=(fussy,), max_tokens=60)[:1]
    with pytest.raises((RuntimeError, InvalidRequest), match=r"the text|is forbidden"):
        finish(engine(target(DTYPE), proposer, 4, rule=rule), beyond)
    assert len(truth()[0].tokens) == 40
