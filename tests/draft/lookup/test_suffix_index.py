"""The index finds what a plain search finds, and forgets what it must."""

from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.torch import save_file

from foreword.draft.lookup.suffix import LEAST, AnswerStore
from foreword.draft.lookup.suffix_index import GAP, SIZES, SuffixIndex
from foreword.errors import InvalidRequest, VocabularyMismatch

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
    """The definition: for each size, longest first, every place, latest first."""
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


def test_a_text_longer_than_the_room_leaves_its_end():
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
def test_nothing_is_copied_across_a_gap(capacity):
    history = noted([9] * 60 + [1, 2, 3, GAP, 4, 5], capacity)
    assert history.after(history.end - 6, 8) == (1, 2, 3)
    assert history.after(history.end - 2, 3) == (4, 5, 4)
    assert history.find([3], 4) == [(63, 1)]
    assert history.after(63, 4) == ()
    assert history.find([2, 3, 4], 4) == [(65, 1)]


def test_another_size_of_room_keeps_the_latest():
    history = noted(list(range(100)), 64)
    assert history.resized(32).tokens() == list(range(68, 100))
    larger = history.resized(128)
    assert larger.tokens() == list(range(36, 100))
    assert larger.find([41, 42], 3) == [(7, 2)]


def test_a_million_tokens_take_no_more_than_promised():
    history = SuffixIndex(1 << 20)
    parts = (history._tokens, history._hashes, *history._latest, *history._before)
    assert sum(len(part) * part.itemsize for part in parts) <= 200e6


def remembered(archive: AnswerStore, tenant: str) -> list[int]:
    history = archive[tenant]
    return [] if history is None else history.tokens()


def test_texts_are_kept_apart():
    archive = AnswerStore(100)
    archive.add("a", [1, 2])
    archive.add("b", [3])
    archive.add("a", [4])
    archive.add("a", [])
    assert remembered(archive, "a") == [1, 2, GAP, 4, GAP]
    assert remembered(archive, "b") == [3, GAP]
    assert archive["c"] is None
    assert len(archive) == 7


def test_the_oldest_is_forgotten():
    archive = AnswerStore(100, capacity=2 * LEAST)
    for turn in range(5):
        archive.add("", [turn] * LEAST)
    assert remembered(archive, "") == [3] * (LEAST - 2) + [GAP] + [4] * LEAST + [GAP]


def test_the_one_with_most_room_makes_room_for_others():
    archive = AnswerStore(100, capacity=8 * LEAST)
    archive.add("big", [*range(50)] * (8 * LEAST // 50))
    archive.add("small", [7])
    assert remembered(archive, "small") == [7, GAP]
    assert len(remembered(archive, "big")) == 4 * LEAST
    assert remembered(archive, "big")[-3:] == [48, 49, GAP]


def test_one_silent_longest_is_forgotten_when_all_have_least():
    archive = AnswerStore(100, capacity=3 * LEAST)
    for tenant in ("a", "b", "c", "a", "d"):
        archive.add(tenant, [1])
    assert [tenant for tenant in "abcd" if archive[tenant]] == ["a", "c", "d"]


@settings(max_examples=40)
@given(
    st.lists(
        st.tuples(st.sampled_from("abcdefgh"), st.integers(0, 3 * LEAST)), max_size=25
    )
)
def test_memory_is_bounded_for_many_tenants(texts: list[tuple[str, int]]) -> None:
    archive = AnswerStore(100, capacity=5 * LEAST)
    for tenant, length in texts:
        archive.add(tenant, [1] * length)
        held = [archive[one] for one in "abcdefgh" if archive[one]]
        assert sum(text.capacity for text in held) <= 5 * LEAST
        assert not length or archive[tenant] is not None


def test_too_small_an_archive_is_refused():
    with pytest.raises(InvalidRequest, match="at least"):
        AnswerStore(100, capacity=10)


def test_what_is_saved_is_loaded(tmp_path):
    archive = AnswerStore(100)
    archive.add("", [1, 2, 3])
    archive.add("", [4])
    archive.add("__metadata__", [5])
    archive.save(tmp_path / "past")
    again = AnswerStore.load(tmp_path / "past", 100)
    assert remembered(again, "") == [1, 2, 3, GAP, 4, GAP]
    assert remembered(again, "__metadata__") == [5, GAP]
    again.save(tmp_path / "past")
    assert len(AnswerStore.load(tmp_path / "past", 100)) == len(archive)
    assert [file.name for file in tmp_path.iterdir()] == ["past"]


def test_a_save_that_fails_leaves_the_old_file(tmp_path, monkeypatch):
    archive = AnswerStore(100)
    archive.add("", [1])
    archive.save(tmp_path / "past")
    archive.add("", [2])

    def full(tensors: object, path: Path, metadata: object) -> None:
        path.write_bytes(b"half")
        raise OSError("disk full")

    monkeypatch.setattr("foreword.draft.lookup.suffix.save_file", full)
    with pytest.raises(OSError, match="disk full"):
        archive.save(tmp_path / "past")
    assert [file.name for file in tmp_path.iterdir()] == ["past"]
    assert remembered(AnswerStore.load(tmp_path / "past", 100), "") == [1, GAP]


def test_a_file_of_another_kind_is_refused(tmp_path):
    (tmp_path / "text").write_text("no history")
    save_file({"weight": torch.zeros(2)}, tmp_path / "model")
    for name in ("text", "model", "missing"):
        with pytest.raises(InvalidRequest, match="Choose another file"):
            AnswerStore.load(tmp_path / name, 100)


def test_a_file_of_another_version_is_refused(tmp_path, monkeypatch):
    archive = AnswerStore(100)
    archive.add("", [1])
    with monkeypatch.context() as past:
        past.setattr("foreword.draft.lookup.suffix.VERSION", "0")
        archive.save(tmp_path / "past")
    with pytest.raises(InvalidRequest, match="version 1"):
        AnswerStore.load(tmp_path / "past", 100)


def test_a_file_of_another_vocabulary_is_refused(tmp_path):
    AnswerStore(100).save(tmp_path / "past")
    with pytest.raises(VocabularyMismatch, match="100 tokens, and the target has 99"):
        AnswerStore.load(tmp_path / "past", 99)
