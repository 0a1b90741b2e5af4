"""A folder is there whole or not at all."""

import resource
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import save_file

from foreword.errors import DiskError, InvalidRequest
from foreword.files import atomic_file, atomic_folder, check_creatable, check_writable
from foreword_train import checkpoint


def test_folder_appears_when_complete(tmp_path):
    with atomic_folder(tmp_path / "shelf" / "book") as begun:
        (begun / "chapter").mkdir()
        (begun / "chapter" / "page").write_text("words")
        assert not (tmp_path / "shelf" / "book").exists()
    assert (tmp_path / "shelf" / "book" / "chapter" / "page").read_text() == "words"
    assert [path.name for path in (tmp_path / "shelf").iterdir()] == ["book"]


def test_folder_has_the_usual_permissions(tmp_path):
    with atomic_folder(tmp_path / "book"):
        (tmp_path / "usual").mkdir()
    assert (tmp_path / "book").stat().st_mode == (tmp_path / "usual").stat().st_mode


@pytest.mark.parametrize("fault", [ValueError, KeyboardInterrupt])
def test_nothing_is_left_of_what_failed(tmp_path, fault):
    def fill() -> None:
        with atomic_folder(tmp_path / "book") as begun:
            (begun / "page").write_text("words")
            raise fault

    with pytest.raises(fault):
        fill()
    assert list(tmp_path.iterdir()) == []


def test_what_is_there_stays(tmp_path):
    (tmp_path / "book").write_text("old")
    with (
        pytest.raises(InvalidRequest, match="book exists already"),
        atomic_folder(tmp_path / "book"),
    ):
        pytest.fail("there is nothing to fill")
    assert (tmp_path / "book").read_text() == "old"


def test_what_came_meanwhile_stays(tmp_path):
    def fill() -> None:
        with atomic_folder(tmp_path / "book") as begun:
            (begun / "page").write_text("late")
            (tmp_path / "book").mkdir()
            (tmp_path / "book" / "page").write_text("first")

    with pytest.raises(InvalidRequest, match="book exists already"):
        fill()
    assert (tmp_path / "book" / "page").read_text() == "first"
    assert [path.name for path in tmp_path.iterdir()] == ["book"]


@pytest.fixture
def places(tmp_path):
    """A folder, a file, and a folder closed to writing with a writable file."""
    (tmp_path / "folder").mkdir()
    (tmp_path / "file").write_text("words")
    (tmp_path / "closed").mkdir()
    (tmp_path / "closed" / "log").write_text("words")
    return tmp_path


@pytest.fixture
def guarded(monkeypatch):
    """`closed` may not be written to, not even by the root of a container."""
    monkeypatch.setattr("os.access", lambda path, _: path.name != "closed")


@pytest.mark.parametrize("name", ["new", "file", "folder/new", "closed/log"])
def test_check_writable_changes_nothing(places, guarded, name):
    before = sorted(places.rglob("*"))
    check_writable(places / name)
    assert sorted(places.rglob("*")) == before


@pytest.mark.parametrize("name", ["folder", "none/new", "file/new", "closed/new"])
def test_a_file_that_cannot_be_written_is_refused(places, guarded, name):
    with pytest.raises(InvalidRequest, match=f"{name}: choose a path in an existing"):
        check_writable(places / name)


@pytest.mark.parametrize("name", ["new", "none/new", "folder", "folder/new"])
def test_a_folder_that_can_be_made_is_not_made(places, guarded, name):
    before = sorted(places.rglob("*"))
    check_creatable(places / name)
    assert sorted(places.rglob("*")) == before


@pytest.mark.parametrize(
    "name", ["file", "file/new", "file/none/new", "closed/new", "closed/none/new"]
)
def test_a_folder_that_cannot_be_made_is_refused(places, guarded, name):
    with pytest.raises(InvalidRequest, match=f"{name} in .*/(file|closed): choose"):
        check_creatable(places / name)


def test_folder_is_refused_before_it_is_filled(places):
    with (
        pytest.raises(InvalidRequest, match="cannot create"),
        atomic_folder(places / "file" / "new"),
    ):
        pytest.fail("there is nothing to fill")


def test_file_is_replaced_whole_or_not_at_all(tmp_path):
    file = tmp_path / "made" / "file"
    for text in ("one", "two"):
        with atomic_file(file) as begun:
            begun.write_text(text)
            assert not file.exists() or file.read_text() == "one"
        assert file.read_text() == text
    with pytest.raises(FileNotFoundError), atomic_file(file):
        pass  # nothing was written
    assert file.read_text() == "two"
    assert list(file.parent.iterdir()) == [file]


@pytest.fixture
def little_room() -> Iterator[None]:
    """No file may have more than 64 KiB: as on a full disk, with another number."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (2**16, hard))
    yield
    resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


WRITERS: dict[str, Callable[[Path], object]] = {
    "text": lambda path: path.write_text("x" * 2**17),
    "numpy": lambda path: np.zeros(2**17, np.uint8).tofile(path),
    "torch": lambda path: torch.save(torch.zeros(2**17), path),
    "safetensors": lambda path: save_file({"x": torch.zeros(2**17)}, path),
}


@pytest.mark.parametrize("write", WRITERS.values(), ids=WRITERS)
def test_full_disk_keeps_the_old_file(tmp_path, little_room, write):
    def fill() -> None:
        with atomic_folder(tmp_path / "book") as begun:
            write(begun / "page")

    with pytest.raises(DiskError, match=r"/book: the disk is full.*Free some space"):
        fill()
    assert list(tmp_path.iterdir()) == []
    checkpoint.save(tmp_path, 1, lambda folder: (folder / "page").write_text("early"))
    with pytest.raises(DiskError, match="the disk is full"):
        checkpoint.save(tmp_path, 2, lambda folder: write(folder / "page"))
    assert [path.name for path in tmp_path.iterdir()] == ["step-000000001"]


def test_other_errors_are_left_as_they_are(tmp_path):
    with (
        pytest.raises(OSError, match="Is a directory"),
        atomic_folder(tmp_path / "book") as begun,
    ):
        begun.write_text("words")


def test_files_have_the_usual_permissions(tmp_path):
    with atomic_folder(tmp_path / "book") as begun:
        save_file({"x": torch.zeros(4)}, begun / "model.safetensors")
        (begun / "program").write_text("words")
        (begun / "program").chmod(0o700)
    (tmp_path / "usual").write_text("words")
    usual = (tmp_path / "usual").stat().st_mode
    assert (tmp_path / "book" / "model.safetensors").stat().st_mode == usual
    assert (tmp_path / "book" / "program").stat().st_mode == usual | 0o100
