"""The index finds what a plain search finds, forgets what it must, and notes many
tokens as it notes one.
"""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from foreword.draft.lookup.suffix_index import GAP, SIZES, SuffixIndex

few = st.integers(0, 2)
texts = st.lists(few, min_size=1, max_size=90)


def noted(tokens: list[int], capacity: int) -> SuffixIndex:
    """Token by token."""
    history = SuffixIndex(capacity)
    for token in tokens:
        history.extend([token])
    return history


def searched(
    tokens: list[int], context: list[int], first: int
) -> list[tuple[int, int]]:
    """The definition: for each size, longest first, every place before the end, latest
    first, if it is remembered.
    """
    found: dict[int, int] = {}
    for size in SIZES:
        for place in range(len(tokens) - 1, size + first - (first == 0), -1):
            if size <= len(context) and tokens[place - size : place] == context[-size:]:
                found.setdefault(place, size)
    return list(found.items())


@given(texts, st.lists(few, min_size=1, max_size=20), st.integers(0, 40))
def test_places_are_those_of_a_plain_search(
    tokens: list[int], context: list[int], most: int
) -> None:
    expected = searched(tokens, context, 0)
    assert noted(tokens, 128).find(context, 200) == expected
    assert noted(tokens, 128).find(context, most + 1) == expected[: most + 1]


@given(texts)
def test_the_end_of_the_text_is_found_in_the_text(tokens: list[int]) -> None:
    assert noted(tokens, 128).find(tokens, 200) == searched(tokens, tokens, 0)


@given(st.lists(few, min_size=60, max_size=200), st.lists(few, min_size=1, max_size=20))
def test_what_is_forgotten_is_not_found(tokens: list[int], context: list[int]) -> None:
    history = noted(tokens, 50)
    assert history.start == len(tokens) - 50
    assert history.tokens() == tokens[-50:]
    assert history.find(context, 300) == searched(tokens, context, history.start)


@given(
    st.lists(st.lists(st.integers(GAP, 3), min_size=1, max_size=40), max_size=12),
    st.sampled_from([32, 50, 64]),
)
def test_tokens_are_noted_in_c_as_defined(
    pieces: list[list[int]], capacity: int
) -> None:
    defined, fast = SuffixIndex(capacity), SuffixIndex(capacity)
    defined.index = None
    for piece in pieces:
        for history in (defined, fast):
            history.extend(piece)
        assert defined.end == fast.end
        for name in ("_tokens", "_hashes", "_latest", "_before"):
            assert getattr(defined, name) == getattr(fast, name), name


def test_a_text_longer_than_the_room_leaves_its_end() -> None:
    tokens = [place % 11 for place in range(1000)]
    history = SuffixIndex(300)
    history.extend(tokens)
    assert history.tokens() == tokens[-300:]


@given(texts, st.data(), st.integers(0, 30))
def test_what_follows_a_place_goes_on_with_itself(
    tokens: list[int], data: st.DataObject, count: int
) -> None:
    place = data.draw(st.integers(0, len(tokens) - 1))
    text = list(tokens)
    for step in range(count):
        text.append(text[place + step])
    assert list(noted(tokens, 128).after(place, count)) == text[place : place + count]


@pytest.mark.parametrize("capacity", [32, 128])
def test_nothing_is_copied_across_a_gap(capacity: int) -> None:
    history = noted([9] * 60 + [1, 2, 3, GAP, 4, 5], capacity)
    assert history.after(history.end - 6, 8) == (1, 2, 3)
    assert history.after(history.end - 2, 3) == (4, 5, 4)
    assert history.find([3], 4) == [(63, 1)]
    assert history.after(63, 4) == ()
    assert history.find([2, 3, 4], 4) == [(65, 1)]


def test_another_size_of_room_keeps_the_latest() -> None:
    history = noted(list(range(100)), 64)
    assert history.resized(32).tokens() == list(range(68, 100))
    larger = history.resized(128)
    assert larger.tokens() == list(range(36, 100))
    assert larger.find([41, 42], 3) == [(7, 2)]


def test_a_million_tokens_take_no_more_than_promised() -> None:
    history = SuffixIndex(1 << 20)
    parts = (history._tokens, history._hashes, *history._latest, *history._before)
    assert sum(len(part) * part.itemsize for part in parts) <= 200e6
