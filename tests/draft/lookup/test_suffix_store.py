"""Past texts: apart for each tenant, bounded for all, the same after a visit to the
disk.
"""

from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.torch import save_file

from foreword.draft.lookup.suffix import LEAST, AnswerStore
from foreword.draft.lookup.suffix_index import GAP
from foreword.errors import InvalidRequest, VocabularyMismatch


def remembered(archive: AnswerStore, tenant: str) -> list[int]:
    history = archive[tenant]
    return [] if history is None else history.tokens()


def test_texts_are_kept_apart() -> None:
    archive = AnswerStore(100)
    archive.add("a", [1, 2])
    archive.add("b", [3])
    archive.add("a", [4])
    archive.add("a", [])
    assert remembered(archive, "a") == [1, 2, GAP, 4, GAP]
    assert remembered(archive, "b") == [3, GAP]
    assert archive["c"] is None
    assert len(archive) == 7


def test_the_oldest_is_forgotten() -> None:
    archive = AnswerStore(100, capacity=2 * LEAST)
    for turn in range(5):
        archive.add("", [turn] * LEAST)
    assert remembered(archive, "") == [3] * (LEAST - 2) + [GAP] + [4] * LEAST + [GAP]


def test_the_one_with_most_room_makes_room_for_others() -> None:
    archive = AnswerStore(100, capacity=8 * LEAST)
    archive.add("big", [*range(50)] * (8 * LEAST // 50))
    archive.add("small", [7])
    assert remembered(archive, "small") == [7, GAP]
    assert len(remembered(archive, "big")) == 4 * LEAST
    assert remembered(archive, "big")[-3:] == [48, 49, GAP]


def test_one_silent_longest_is_forgotten_when_all_have_least() -> None:
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
        assert (
            sum(archive[one].capacity for one in "abcdefgh" if archive[one])
            <= 5 * LEAST
        )
        assert not length or archive[tenant] is not None


def test_too_small_an_archive_is_refused() -> None:
    with pytest.raises(InvalidRequest, match="at least"):
        AnswerStore(100, capacity=10)


def test_what_is_saved_is_loaded(tmp_path: Path) -> None:
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


def test_a_save_that_fails_leaves_the_old_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
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


def test_a_file_of_another_kind_is_refused(tmp_path: Path) -> None:
    (tmp_path / "text").write_text("no history")
    save_file({"weight": torch.zeros(2)}, tmp_path / "model")
    for name in ("text", "model", "missing"):
        with pytest.raises(InvalidRequest, match="Choose another file"):
            AnswerStore.load(tmp_path / name, 100)


def test_a_file_of_another_version_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    archive = AnswerStore(100)
    archive.add("", [1])
    with monkeypatch.context() as past:
        past.setattr("foreword.draft.lookup.suffix.VERSION", "0")
        archive.save(tmp_path / "past")
    with pytest.raises(InvalidRequest, match="version 1"):
        AnswerStore.load(tmp_path / "past", 100)


def test_a_file_of_another_vocabulary_is_refused(tmp_path: Path) -> None:
    AnswerStore(100).save(tmp_path / "past")
    with pytest.raises(VocabularyMismatch, match="100 tokens, and the target has 99"):
        AnswerStore.load(tmp_path / "past", 99)
