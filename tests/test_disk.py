"""A folder is there whole or not at all."""

import pytest

from foreword.disk import appearing
from foreword.errors import InvalidRequest


def test_it_has_its_name_when_it_is_complete(tmp_path):
    with appearing(tmp_path / "shelf" / "book") as begun:
        (begun / "chapter").mkdir()
        (begun / "chapter" / "page").write_text("words")
        assert not (tmp_path / "shelf" / "book").exists()
    assert (tmp_path / "shelf" / "book" / "chapter" / "page").read_text() == "words"
    assert [path.name for path in (tmp_path / "shelf").iterdir()] == ["book"]


def test_whoever_may_read_other_folders_may_read_it(tmp_path):
    with appearing(tmp_path / "book"):
        (tmp_path / "usual").mkdir()
    assert (tmp_path / "book").stat().st_mode == (tmp_path / "usual").stat().st_mode


@pytest.mark.parametrize("fault", [ValueError, KeyboardInterrupt])
def test_nothing_is_left_of_what_failed(tmp_path, fault):
    def fill() -> None:
        with appearing(tmp_path / "book") as begun:
            (begun / "page").write_text("words")
            raise fault

    with pytest.raises(fault):
        fill()
    assert list(tmp_path.iterdir()) == []


def test_what_is_there_stays(tmp_path):
    (tmp_path / "book").write_text("old")
    with pytest.raises(InvalidRequest, match="book exists already"), appearing(tmp_path / "book"):
        pytest.fail("there is nothing to fill")
    assert (tmp_path / "book").read_text() == "old"


def test_what_came_meanwhile_stays(tmp_path):
    def fill() -> None:
        with appearing(tmp_path / "book") as begun:
            (begun / "page").write_text("late")
            (tmp_path / "book").mkdir()
            (tmp_path / "book" / "page").write_text("first")

    with pytest.raises(InvalidRequest, match="book exists already"):
        fill()
    assert (tmp_path / "book" / "page").read_text() == "first"
    assert [path.name for path in tmp_path.iterdir()] == ["book"]
