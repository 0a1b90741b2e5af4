"""Prompt lookup: the index finds what a plain search finds, however the text grew."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from foreword.draft.lookup.ngram import NgramDrafter, copied
from foreword.errors import InvalidRequest
from foreword.sampling.streams import NoiseStreams
from foreword.types import Batch, Draft, Request, SamplingParams, Source

EOS = 3
tokens_of_few = st.lists(st.integers(0, 3), min_size=1, max_size=40)


def request(
    tokens: list[int], id: int = 0, eos: frozenset[int] = frozenset()
) -> Request:
    return Request(
        id=id, tokens=list(tokens), prompt=1, params=SamplingParams(), seed=0, eos=eos
    )


def batch(*requests: Request) -> Batch:
    return Batch(requests, NoiseStreams(8, shared=True))


def draft_tokens(draft: Draft) -> list[list[int]]:
    return [
        row[:count]
        for row, count in zip(draft.tokens.tolist(), draft.count.tolist(), strict=True)
    ]


def propose(drafter: NgramDrafter, one: Request, budget: int) -> list[int]:
    return draft_tokens(drafter.propose(batch(one), [budget]))[0]


def searched(tokens: list[int], sizes: range, budget: int) -> list[int]:
    """The definition: longest n-gram, then the nearest one; copied token by token."""
    for size in reversed(sizes):
        for end in range(len(tokens) - 1, size - 1, -1):
            if tokens[end - size : end] == tokens[len(tokens) - size :]:
                text = list(tokens)
                for place in range(budget):
                    text.append(text[end + place])
                return text[len(tokens) :]
    return []


@given(tokens_of_few, st.integers(1, 3), st.integers(0, 4), st.integers(0, 9))
def test_draft_tokens_are_those_of_a_plain_search(
    tokens: list[int], smallest: int, more: int, budget: int
) -> None:
    drafter = NgramDrafter(max_ngram=smallest + more, min_ngram=smallest)
    expected = searched(tokens, range(smallest, smallest + more + 1), budget)
    assert propose(drafter, request(tokens), budget) == expected


@given(
    tokens_of_few,
    st.lists(st.lists(st.integers(0, 3), min_size=1, max_size=5), max_size=12),
)
def test_text_that_grew_is_drafted_like_same_text_at_once(
    start: list[int], grown: list[list[int]]
) -> None:
    drafter, growing = NgramDrafter(), request(start)
    for new in [[], *grown]:
        growing.tokens.extend(new)
        assert propose(drafter, growing, 6) == propose(
            NgramDrafter(), request(growing.tokens), 6
        )


@given(
    tokens_of_few,
    st.lists(st.tuples(st.integers(0, 3), st.integers(0, 2)), max_size=12),
)
def test_rounds_without_a_budget_lose_nothing(
    start: list[int], rounds: list[tuple[int, int]]
) -> None:
    drafter, growing = NgramDrafter(), request(start)
    for token, budget in rounds:
        growing.tokens.append(token)
        assert propose(drafter, growing, budget) == propose(
            NgramDrafter(), request(growing.tokens), budget
        )


@given(tokens_of_few, st.integers(1, 9))
def test_nothing_follows_an_end_of_text(tokens: list[int], budget: int) -> None:
    free = propose(NgramDrafter(), request(tokens), budget)
    bound = propose(NgramDrafter(), request(tokens, eos=frozenset({EOS})), budget)
    assert bound == (free[: free.index(EOS) + 1] if EOS in free else free)


def test_only_the_first_end_of_text_is_drafted() -> None:
    assert propose(NgramDrafter(), request([EOS, 1, EOS], eos=frozenset({EOS})), 4) == [
        1,
        EOS,
    ]


class Counted(list):
    """A list that counts how often it was read."""

    reads = 0

    def __getitem__(self, place):
        self.reads += 1
        return super().__getitem__(place)


@pytest.mark.parametrize("length", [50, 5000])
def test_a_round_reads_the_new_tokens_only(length: int) -> None:
    drafter, growing = NgramDrafter(max_ngram=4), request([])
    growing.tokens = Counted([token % 7 for token in range(length)])
    propose(drafter, growing, 8)
    before = growing.tokens.reads
    growing.tokens.append(length % 7)
    assert propose(drafter, growing, 2) == [(length + 1) % 7, (length + 2) % 7]
    # 4 n-grams noted, 4 looked up, one copy, and a few looks by the checker of types;
    # never the whole text.
    assert growing.tokens.reads - before <= 4 + 4 + 1 + 10


def test_the_most_recent_occurrence_wins() -> None:
    assert propose(NgramDrafter(), request([1, 2, 5, 1, 2, 6, 1, 2]), 2) == [6, 1]


def test_a_longer_match_wins_over_a_more_recent_one() -> None:
    text = [1, 2, 5, 7, 2, 6, 1, 2]
    assert propose(NgramDrafter(max_ngram=2), request(text), 1) == [5]
    assert propose(NgramDrafter(max_ngram=1), request(text), 1) == [6]


def test_a_repetition_fills_the_whole_budget() -> None:
    assert propose(NgramDrafter(), request([4, 4]), 5) == [4] * 5
    assert copied([0, 1, 2], 1, 5) == [1, 2, 1, 2, 1]


def test_a_text_without_repetition_gets_no_draft_token() -> None:
    draft = NgramDrafter().propose(batch(request([1, 2, 3, 4])), [8])
    assert draft.count.tolist() == [0]
    assert draft.nodes == 0


def test_sequences_of_one_batch_keep_to_their_own_text_and_budget() -> None:
    drafter = NgramDrafter()
    texts = [
        request([1, 2, 1], id=1),
        request([5, 6, 7, 5], id=2),
        request([1, 3, 1], id=3),
        request([9], id=4),
    ]
    draft = drafter.propose(batch(*texts), [2, 3, 0, 4])
    assert draft_tokens(draft) == [[2, 1], [6, 7, 5], [], []]
    assert draft.probs is None
    assert draft.parents.tolist() == [[-1, 0, 1]] * 4


def test_release_forgets_the_text() -> None:
    drafter = NgramDrafter()
    propose(drafter, request([1, 2, 1], id=7), 1)
    drafter.release(request([], id=7))
    assert propose(drafter, request([1, 9], id=7), 1) == []
    drafter.release(request([], id=7))
    drafter.release(request([], id=8))
    assert drafter._indexes == {}


@pytest.mark.parametrize(("largest", "smallest"), [(2, 3), (3, 0), (0, 0)])
def test_sizes_that_make_no_sense_are_refused(largest: int, smallest: int) -> None:
    with pytest.raises(InvalidRequest, match="min_ngram"):
        NgramDrafter(max_ngram=largest, min_ngram=smallest)


def test_the_source_of_an_encoder_decoder_is_copied_from_too():
    drafter = NgramDrafter()
    one = Request(0, [0, 7, 5], 1, SamplingParams(), 0, source=Source((4, 5, 6, 7, 2)))
    assert propose(drafter, one, 3) == [6, 7, 2]
    one.tokens += [6]
    assert propose(drafter, one, 2) == [7, 2]
