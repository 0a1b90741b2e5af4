"""Compiled code on disk is loaded only if whole and written by no other user."""

import json
import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from command import SOURCE, printed

pytestmark = pytest.mark.skipif(
    shutil.which("cc") is None, reason="there is no C compiler"
)
WELL = ([True, True], None, [])
root = pytest.mark.skipif(
    os.name != "posix" or os.geteuid() != 0, reason="only root may do this"
)


@pytest.fixture(scope="module")
def both(tmp_path_factory) -> Path:
    """A cache with both libraries, which no test of this process loads from there."""
    return tmp_path_factory.mktemp("both")


@pytest.fixture
def filled(both, tmp_path, compile_with) -> Path:
    """A copy of that cache."""
    if not (both / "foreword").exists():
        assert compile_with(both) == WELL
    return Path(shutil.copytree(both, tmp_path / "cache"))


def kept(cache: Path, stem: str = "sampling") -> Path:
    (file,) = (cache / "foreword").glob(f"{stem}-*.so")
    return file


def half(file: Path) -> None:
    os.truncate(file, file.stat().st_size // 2)


def nothing(file: Path) -> None:
    os.truncate(file, 0)


def garbage(file: Path) -> None:
    file.write_bytes(b"garbage" * 1000)


def flipped(file: Path) -> None:
    held = bytearray(file.read_bytes())
    held[len(held) // 2] ^= 1
    file.write_bytes(held)


def anyone_may_write(file: Path) -> None:
    file.chmod(0o666)


def of_another_user(file: Path) -> None:
    os.chown(file, 12345, 12345)


@pytest.mark.parametrize(
    "change",
    [
        half,
        nothing,
        garbage,
        flipped,
        anyone_may_write,
        pytest.param(of_another_user, marks=root),
    ],
)
def test_unsafe_library_is_compiled_again(filled, compile_with, change):
    whole = kept(filled).read_bytes()
    change(kept(filled))
    again = compile_with(filled)
    (warning,) = again.warnings
    assert again[:2] == WELL[:2]
    assert "compiled again" in warning
    after = kept(filled).stat()
    assert (after.st_uid, after.st_mode & 0o022) == (os.geteuid(), 0)
    assert kept(filled).read_bytes() == whole
    assert compile_with(filled) == WELL


@root
def test_folder_of_another_user_is_not_used(filled, compile_with):
    garbage(kept(filled))  # would be found if it were read
    folder = filled / "foreword"
    of_another_user(folder)
    got = compile_with(filled)
    (warning,) = got.warnings
    assert got[:2] == WELL[:2]
    assert str(folder) in warning
    assert "not kept" in warning
    assert kept(filled).read_bytes().startswith(b"garbage")


def test_folder_is_for_its_owner_alone(filled, compile_with):
    assert (filled / "foreword").stat().st_mode & 0o777 == 0o700
    assert all(
        file.stat().st_mode & 0o022 == 0 for file in (filled / "foreword").iterdir()
    )
    (filled / "foreword").chmod(0o777)
    assert compile_with(filled) == WELL
    assert (filled / "foreword").stat().st_mode & 0o777 == 0o700


def test_relative_cache_is_ignored(tmp_path, monkeypatch, compile_with):
    home, where = tmp_path / "home", tmp_path / "where"
    home.mkdir()
    where.mkdir()
    monkeypatch.chdir(where)
    assert compile_with("relative", HOME=str(home)) == WELL
    assert list(where.iterdir()) == []
    assert kept(home / ".cache").exists()


def without_write(base: Path) -> Iterator[Path]:
    base.write_text("a file, where a folder should be")
    yield base / "below"


def without_exec(base: Path) -> Iterator[Path]:
    yield from mounted(base, "noexec,size=8m")


def without_room(base: Path) -> Iterator[Path]:
    yield from mounted(base, "size=8k")


def mounted(base: Path, options: str) -> Iterator[Path]:
    base.mkdir()
    if subprocess.run(
        ["mount", "-t", "tmpfs", "-o", options, "tmpfs", base], check=False
    ).returncode:
        pytest.skip("cannot mount here")
    try:
        yield base
    finally:
        subprocess.run(["umount", "--lazy", base], check=True)


@pytest.mark.parametrize(
    "kind",
    [
        without_write,
        pytest.param(without_exec, marks=root),
        pytest.param(without_room, marks=root),
    ],
)
def test_unusable_cache_is_warned_of_once(tmp_path, monkeypatch, compile_with, kind):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    places = kind(tmp_path / "cache")
    try:
        got = compile_with(next(places))
        (warning,) = got.warnings
        assert got[:2] == WELL[:2]
        assert "not kept" in warning
    finally:
        places.close()
    assert [file.name for file in tmp_path.iterdir()] == ["cache"]


PROGRAM = """
import ctypes, json, os, sys
from foreword.native.compiler import SOURCES, compiled
children = []
for _ in range(4):
    if child := os.fork():
        children.append(child)
        continue
    made = [compiled(SOURCES / file) for file in ("sampling.c", "bandwidth.c")]
    os._exit(not all(isinstance(one, ctypes.CDLL) for one in made))
print(json.dumps([os.waitpid(child, 0)[1] for child in children]))
"""
"""Four processes, of which only the first imports."""


@pytest.mark.skipif(os.name != "posix", reason="the system has no fork")
def test_many_processes_compile_at_once(tmp_path, compile_with):
    own = {
        "XDG_CACHE_HOME": str(tmp_path),
        "PYTHONPATH": str(SOURCE),
        "CC": "cc",
        "FOREWORD_CFLAGS": "-O0",
    }
    assert json.loads(printed("-W", "error", "-c", PROGRAM, **own)) == [0] * 4
    assert kept(tmp_path).exists()
    assert {file.suffix for file in (tmp_path / "foreword").iterdir()} == {".so"}
    assert compile_with(tmp_path) == WELL
