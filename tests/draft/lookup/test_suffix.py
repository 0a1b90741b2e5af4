"""Votes of earlier places: counted as defined, grown, learned from, kept apart."""

import random

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from foreword.draft.acceptance import AcceptanceEstimate
from foreword.draft.base import Drafter
from foreword.draft.lookup.suffix import AnswerStore, SuffixDrafter
from foreword.draft.lookup.suffix_index import GAP, SIZES, SuffixIndex
from foreword.draft.lookup.suffix_votes import (
    VOTERS,
    WEIGHT,
    ContinuationCounts,
    CountsFactory,
    Votes,
    votes,
)
from foreword.errors import InvalidRequest, VocabularyMismatch
from foreword.native import suffix
from foreword.sampling.streams import NoiseStreams
from foreword.types import (
    Batch,
    Draft,
    Request,
    SamplingParams,
    Scores,
    Source,
    Verdict,
)
from running import Case, drafter, engine, finish, plain, prompts, target

VOCAB = 50
NATIVE = pytest.mark.skipif(suffix.library() is None, reason="there is no C compiler")
few = st.integers(0, 2)
texts = st.lists(few, min_size=1, max_size=50)
ballots = st.lists(
    st.tuples(st.lists(few, max_size=5).map(tuple), st.integers(1, 300)), max_size=8
)


def sequence(
    tokens: list[int],
    id: int = 0,
    tenant: str = "",
    temperature: float = 0.0,
    prompt: int = 1,
) -> Request:
    params = SamplingParams(tenant=tenant, temperature=temperature, max_tokens=2000)
    return Request(id, list(tokens), prompt, params, seed=0, eos=frozenset({9}))


def fresh(ask: CountsFactory | None = None) -> SuffixDrafter:
    return SuffixDrafter(AnswerStore(VOCAB), ask=ask)


def batch(*sequences: Request, trees: bool = True, floor: float = 0.0) -> Batch:
    return Batch(sequences, NoiseStreams(VOCAB, shared=True), trees, floor)


def paths(draft: Draft, row: int = 0) -> list[tuple[int, ...]]:
    return [tuple(path) for path in draft.trees[row].paths[1:]]


def propose(
    one: Drafter, asked: Request, budget: int, **how: bool | float
) -> list[tuple[int, ...]]:
    return paths(one.propose(batch(asked, **how), [budget]))


def answer(one: Drafter, tokens: list[int], tenant: str = "", id: int = 99) -> None:
    """The drafter sees a request that is answered with `tokens`."""
    asked = sequence([8], id, tenant)
    one.propose(batch(asked), [4])
    asked.tokens += tokens
    one.release(asked)


def counted(
    text: list[int], past: list[int], length: int
) -> dict[tuple[int, ...], int]:
    """The definition of the votes, by plain search."""
    matches: list[tuple[int, list[int], int]] = []
    for tokens in (text, past):
        for place in range(len(tokens) - 1, 0, -1):
            longest = min(place, len(text))
            sizes = [n for n in SIZES if n <= longest]
            same = [n for n in sizes if tokens[place - n : place] == text[-n:]]
            size = next(iter(same), 0)
            if size:
                matches.append((size, tokens, place))
    weights: dict[tuple[int, ...], int] = {}
    for size, tokens, place in sorted(matches, key=lambda match: -match[0])[:VOTERS]:
        copy = list(tokens)
        for step in range(length):
            copy.append(copy[place + step])
        run = copy[place : place + length]
        run = tuple(run[: run.index(GAP)] if GAP in run else run)
        weights[run] = weights.get(run, 0) + WEIGHT[size]
    return weights


@given(texts, st.lists(texts, max_size=3), st.integers(1, 6))
def test_votes_are_those_of_a_plain_search(
    text: list[int], answers: list[list[int]], length: int
) -> None:
    own, archive = SuffixIndex(64), AnswerStore(VOCAB)
    own.extend(text)
    for tokens in answers:
        archive.add("", tokens)
    past = [token for tokens in answers for token in (*tokens, GAP)]
    found = votes(own, archive[""], text[-SIZES[0] :], length)
    assert dict(found) == counted(text, past, length)


def expected_probabilities(
    ballot: Votes, poll: ContinuationCounts
) -> dict[tuple[int, ...], float]:
    """The definition: the parent's probability, no surprise, and the share of votes."""
    probabilities: dict[tuple[int, ...], float] = {(): 1.0}
    every = {run[:length] for run, _ in ballot for length in range(1, len(run) + 1)}
    for path in sorted(every, key=len):
        before = path[:-1]
        longer = [one for one in ballot if len(one[0]) > len(before)]
        total = sum(weight for run, weight in longer if run[: len(before)] == before)
        weight = sum(weight for run, weight in ballot if run[: len(path)] == path)
        believed = poll.acceptance.probability(*poll._kind(total, len(before)))
        probabilities[path] = probabilities[before] * believed * weight / total
    del probabilities[()]
    return probabilities


@given(
    ballots,
    st.integers(1, 12),
    st.sampled_from([0.0, 0.05, 0.3]),
    st.lists(st.lists(few, max_size=4), max_size=5),
)
def test_the_tree_holds_the_likeliest_draft_tokens(
    ballot: Votes, most: int, floor: float, experience: list[list[int]]
) -> None:
    poll = ContinuationCounts(ballot, AcceptanceEstimate())
    for tokens in experience:
        poll.close(tokens)
    tree = poll.grown(most, floor)
    expected = expected_probabilities(ballot, poll)
    above = [probability for probability in expected.values() if probability > floor]
    best = sorted(above, reverse=True)[:most]
    assert tree.probabilities == pytest.approx(best)
    grown: list[tuple[int, ...]] = []
    for token, parent in zip(tree.tokens, tree.parents, strict=True):
        grown.append((*(grown[parent] if parent >= 0 else ()), token))
    assert len(set(grown)) == len(grown)
    assert [expected[path] for path in grown] == pytest.approx(tree.probabilities)


@given(ballots, st.integers(1, 12))
def test_a_chain_steps_to_the_likeliest_child(ballot: Votes, most: int) -> None:
    poll = ContinuationCounts(ballot, AcceptanceEstimate())
    tree = poll.grown(most, branches=False)
    expected = expected_probabilities(ballot, poll)
    path: tuple[int, ...] = ()
    rows = zip(tree.tokens, tree.parents, tree.probabilities, strict=True)
    for token, parent, probability in rows:
        assert parent == len(path) - 1
        siblings = [expected.get((*path, other), 0) for other in range(3)]
        path = (*path, token)
        assert probability == pytest.approx(max(siblings))
    assert len(path) == most or not any(other[:-1] == path for other in expected)


@NATIVE
@given(
    texts,
    st.lists(texts, max_size=3),
    st.sampled_from([40, 64]),
    st.tuples(
        st.integers(1, 20),
        st.sampled_from([0.0, 0.05, 0.3]),
        st.sets(few, max_size=2),
        st.booleans(),
    ),
    st.lists(st.tuples(st.lists(few, max_size=5), st.booleans()), max_size=6),
)
def test_votes_in_c_are_those_defined(
    text: list[int],
    answers: list[list[int]],
    room: int,
    how: tuple[int, float, set[int], bool],
    course: list[tuple[list[int], bool]],
) -> None:
    """Every round of a text, greedy and sampled: the same draft tokens, as likely."""
    own, archive = SuffixIndex(room), AnswerStore(VOCAB)
    own.extend(text)
    for tokens in answers:
        archive.add("", tokens)
    most, floor, ends, branches = how
    ways = (CountsFactory(native=False), CountsFactory(native=True))
    for said, greedy in [*course, ([], True), ([], False)]:
        context = text[-SIZES[0] :]
        defined, fast = (
            ask(own, archive[""], context, most, greedy=greedy) for ask in ways
        )
        expected, found = (
            poll.grown(most, floor, frozenset(ends), branches=branches)
            for poll in (defined, fast)
        )
        assert found.probabilities == pytest.approx(expected.probabilities, rel=1e-12)
        # or the last bit may order equal probabilities
        if len(set(expected.probabilities)) == len(expected.probabilities):
            assert (found.tokens, found.parents) == (expected.tokens, expected.parents)
        for poll in (defined, fast):
            poll.close(said)
        text = [*text, *said]
        own.extend(said)


@NATIVE
def test_where_there_is_a_compiler_votes_are_counted_in_c():
    assert CountsFactory().native
    assert fresh()._count.native


def test_equal_probabilities_keep_order_in_which_they_were_found():
    """Four tokens followed once each: the latest is first in the tree, in C too."""
    text = [1, 2, 1, 3, 1, 4, 1, 5, 1]
    for ask in (CountsFactory(native=False), CountsFactory()):
        assert propose(fresh(ask), sequence(text), 4) == [(5,), (4,), (3,), (2,)]


def test_own_text_comes_before_past_answers():
    for ask in (CountsFactory(native=False), CountsFactory()):
        one = fresh(ask)
        answer(one, [1, 2])
        assert propose(one, sequence([1, 3, 1]), 3)[:2] == [(3,), (2,)]


@pytest.mark.parametrize("branches", [True, False])
def test_a_draft_token_at_the_floor_is_not_made(branches):
    history = SuffixIndex(64)
    history.extend([1, 2, 1])
    for ask in (CountsFactory(native=False), CountsFactory()):
        poll = ask(history, None, [1, 2, 1], 1, greedy=True)
        sure = poll.grown(1).probabilities[0]
        assert not len(poll.grown(1, floor=sure, branches=branches))
        assert len(poll.grown(1, floor=sure * 0.999, branches=branches)) == 1


@NATIVE
def test_a_long_text_has_as_many_voters_in_c():
    """Where the latest places are the end or a longer run's, older ones are read."""
    draw = random.Random(3)
    text = [draw.randrange(3) for _ in range(600)]
    history = SuffixIndex(1024)
    for end in range(40, 600, 7):
        history.extend(text[history.end : end])
        context = text[end - SIZES[0] : end]
        trees = [
            ask(history, None, context, 6, greedy=True).grown(32)
            for ask in (CountsFactory(native=False), CountsFactory(native=True))
        ]
        assert trees[0].probabilities == pytest.approx(trees[1].probabilities)


def test_a_longer_match_outvotes_a_few_short_ones():
    text = [1, 2, 3, 4, 7, 4, 5, 4, 5, 1, 2, 3, 4]
    assert propose(fresh(), sequence(text), 1) == [(7,)]
    assert propose(fresh(), sequence(text[4:]), 1) == [(5,)]


def test_nothing_follows_end_of_text_and_rest_goes_on():
    text = [1, 9, 3, 1, 9, 3, 1, 4, 5, 1]
    drafted = propose(fresh(), sequence(text), 6)
    assert (9,) in drafted
    assert (4, 5) in drafted
    assert not any(9 in path[:-1] for path in drafted)


def test_a_floor_and_chains_are_respected():
    text = [1, 2, 1, 3, 1, 4, 1]
    one = fresh()
    [tree] = one.propose(batch(sequence(text), floor=0.1), [30]).trees
    assert 0 < len(tree) < 30
    assert min(tree.probabilities) > 0.1
    assert one.propose(batch(sequence(text), trees=False), [20]).chain
    assert not one.propose(batch(sequence(text)), [20]).chain


def test_a_text_may_outgrow_its_first_room():
    tokens = [random.Random(0).randrange(40) for _ in range(1500)]
    one, growing = fresh(), sequence(tokens[:900])
    propose(one, growing, 4)
    growing.tokens += [*tokens[900:], *tokens[10:30]]
    assert propose(one, growing, 3)[-1] == tuple(tokens[30:33])


# ---- what is learned


def decided(kept: list[int], bonus: int, nodes: int) -> Verdict:
    path = torch.tensor([kept + [-1] * (nodes - len(kept))], dtype=torch.int64)
    return Verdict.padded(path, torch.tensor([len(kept)]), torch.tensor([bonus]))


@pytest.mark.parametrize(("truth", "better"), [(True, True), (False, False)])
def test_probabilities_learn_from_what_the_target_says(truth, better):
    one = fresh()
    asked = sequence([1, 2, 3, 1, 2])
    [before] = one.propose(batch(asked), [1]).trees
    for _ in range(30):
        draft = one.propose(batch(asked), [1])
        verdict = decided([0], 1, 1) if truth else decided([], 40, 1)
        one.observe(batch(asked), draft, verdict, Scores(()))
    [after] = one.propose(batch(asked), [1]).trees
    assert (after.probabilities > before.probabilities) == better
    warm = sequence([1, 2, 3, 1, 2], id=5, temperature=1.0)
    [untaught] = fresh().propose(batch(warm), [1]).trees
    [taught] = one.propose(batch(warm), [1]).trees
    assert taught.probabilities == pytest.approx(untaught.probabilities)


def test_probabilities_are_honest_on_a_random_text():
    """Expected calibration error over ten bins, 100 rounds; over 0.08 if untrained."""
    draw = random.Random(1)
    one, asked = fresh(), sequence([1, 2], temperature=1.0)
    bins = [[0.0, 0.0] for _ in range(10)]
    draft_tokens = 0
    for turn in range(700):
        draft = one.propose(batch(asked), [3])
        token = draw.randrange(40)
        tree = draft.trees[0]
        nodes = zip(tree.tokens, tree.parents, tree.probabilities, strict=True)
        for draft_token, parent, probability in nodes:
            if parent != -1 or turn <= 100:
                continue
            hit = bins[min(9, int(10 * probability))]
            hit[0] += probability
            hit[1] += draft_token == token
            draft_tokens += 1
        one.observe(batch(asked), draft, decided([], token, draft.nodes), Scores(()))
        asked.tokens.append(token)
    assert draft_tokens > 500
    assert sum(abs(believed - right) for believed, right in bins) / draft_tokens < 0.05


# ---- past answers


def test_past_answers_are_remembered_and_prompts_are_not():
    one = fresh()
    answer(one, [1, 2, 3])
    assert propose(one, sequence([5, 1]), 4) == [(2,), (2, 3)]
    assert propose(one, sequence([5, 8], id=3), 4) == []


def test_tenants_do_not_meet():
    one = fresh()
    answer(one, [1, 2, 3], tenant="a")
    assert propose(one, sequence([5, 1], 1, "a"), 1) == [(2,)]
    assert propose(one, sequence([5, 1], 2, "b"), 1) == []
    assert propose(one, sequence([5, 1], 3), 1) == []


def test_an_answer_that_is_given_again_is_predicted_whole():
    params = SamplingParams(temperature=0, max_tokens=30, ignore_eos=True)
    asked = [Case(prompts()[0], params)]
    want, loop = plain(target(), asked), engine(target(), drafter("suffix"), 8)
    first, second = (finish(loop, asked)[0] for _ in range(2))
    assert [first.said, second.said] == [want[0].said] * 2
    assert second.request.stats.rounds < first.request.stats.rounds
    assert second.request.stats.acceptance > 0.5


def test_a_history_is_written_and_read(tmp_path):
    path = tmp_path / "past"
    one = SuffixDrafter.load(path, target(), None)
    assert not path.exists()
    answer(one, [1, 2, 3], tenant="a")
    for source in (path, str(path)):
        again = SuffixDrafter.load(source, target(), None)
        assert propose(again, sequence([1], 1, "a"), 4) == [(2,), (2, 3)]
        assert propose(again, sequence([1], 2), 4) == []
    one.save(tmp_path / "copy")
    assert len(AnswerStore.load(tmp_path / "copy", target().vocab)) == 4


def test_a_long_history_is_not_written_for_every_answer(tmp_path):
    path = tmp_path / "past"
    one = SuffixDrafter.load(path, target(), None)
    answer(one, [1] * 1000)
    answer(one, [2] * 5)
    assert len(AnswerStore.load(path, target().vocab)) == 1001
    answer(one, [2] * 20)
    assert len(AnswerStore.load(path, target().vocab)) == 1001 + 6 + 21


def test_an_answer_that_another_method_wrote_is_stored_once():
    drafter = fresh()
    first, second = (
        Request(number, [1, 2, 3], 1, SamplingParams(), 0) for number in (1, 2)
    )
    for request in (first, first, second, second):  # a release by each method
        drafter.release(request)
    once = fresh()
    for request in (first, second):
        once.release(request)
    assert len(drafter.archive) == len(once.archive) > 4


def test_a_history_that_cannot_be_is_refused(tmp_path):
    with pytest.raises(InvalidRequest, match="without a draft model"):
        SuffixDrafter.load(target(), target(), None)
    for place in (tmp_path, tmp_path / "missing" / "past"):
        with pytest.raises(InvalidRequest, match="folder"):
            SuffixDrafter.load(place, target(), None)
    AnswerStore(VOCAB).save(tmp_path / "past")
    with pytest.raises(VocabularyMismatch):
        SuffixDrafter.load(tmp_path / "past", target(), None)
    with pytest.raises(InvalidRequest, match="the path is missing"):
        fresh().save()


@pytest.mark.parametrize(
    "ask", [CountsFactory(native=False), pytest.param(None, id="usual")]
)
def test_the_source_of_an_encoder_decoder_is_copied_from_too(ask):
    made = fresh(ask)
    one = Request(0, [0, 7, 5], 1, SamplingParams(), 0, source=Source((4, 5, 6, 7, 2)))
    assert made.propose(batch(one, trees=False), [3]).trees[0].tokens == [6, 7, 2]
    one.tokens += [6]
    assert made.propose(batch(one, trees=False), [2]).trees[0].tokens == [7, 2]
    made.release(one)
    assert len(made.archive) == len([7, 5, 6]) + 1  # and a gap
