"""Compiled code is kept on disk and loaded only where it is whole and nobody else could
have written it.

Each case runs in a process of its own, because a library that is loaded stays loaded.
"""

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import foreword

pytestmark = pytest.mark.skipif(
    shutil.which("cc") is None, reason="there is no C compiler"
)
PROGRAM = """
import ctypes, json, warnings
from pathlib import Path
import foreword
from foreword.native.compiler import compiled
with warnings.catch_warnings(record=True) as said:
    warnings.simplefilter("always")
    folder = Path(foreword.__file__).with_name("native") / "csrc"
    made = [compiled(folder / "sampling.c"), compiled(folder / "bandwidth.c")]
found = {"compiled": [isinstance(one, ctypes.CDLL) and hasattr(one, name) for one, name in
         zip(made, ("foreword_gumbel", "foreword_read"))]}
found["reason"] = made[0] if isinstance(made[0], str) else None
found["said"] = [str(one.message) for one in said]
print(json.dumps(found))
"""
WELL = {"compiled": [True, True], "reason": None, "said": []}
root = pytest.mark.skipif(
    os.name != "posix" or os.geteuid() != 0, reason="only root may do this"
)


def started(cache: Path | str, **own: str) -> subprocess.Popen[str]:
    known = {
        "XDG_CACHE_HOME": str(cache),
        "PYTHONPATH": str(Path(foreword.__file__).parents[1]),
        "CC": "cc",
        "FOREWORD_CFLAGS": "-O0",
    }
    where = own.pop("cwd", None)
    return subprocess.Popen(
        [sys.executable, "-c", PROGRAM],
        env=os.environ | known | own,
        cwd=where,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def ended(process: subprocess.Popen[str]) -> dict:
    out, err = process.communicate(timeout=120)
    assert process.returncode == 0, err
    return json.loads(out)


def found(cache: Path | str, **own: str) -> dict:
    """What a new process finds with this cache."""
    return ended(started(cache, **own))


@pytest.fixture
def filled(tmp_path) -> Path:
    """A cache that holds both libraries."""
    assert found(tmp_path) == WELL
    return tmp_path


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


@pytest.mark.sample(3)
@pytest.mark.parametrize("damage", [half, nothing, garbage, flipped])
def test_damaged_library_is_compiled_again_once_with_a_warning(filled, damage):
    whole = kept(filled).read_bytes()
    damage(kept(filled))
    again = found(filled)
    (said,) = again.pop("said")
    assert again.items() <= WELL.items()
    assert "compiled again" in said
    assert kept(filled).read_bytes() == whole
    assert found(filled) == WELL


def anyone_may_write(file: Path) -> None:
    file.chmod(0o666)


def of_somebody_else(file: Path) -> None:
    os.chown(file, 12345, 12345)


@pytest.mark.parametrize(
    "change", [anyone_may_write, pytest.param(of_somebody_else, marks=root)]
)
def test_library_that_others_can_write_is_compiled_again(filled, change):
    change(kept(filled))
    again = found(filled)
    (said,) = again.pop("said")
    assert again.items() <= WELL.items()
    assert "compiled again" in said
    after = kept(filled).stat()
    assert (after.st_uid, after.st_mode & 0o022) == (os.geteuid(), 0)


@root
def test_folder_of_somebody_else_is_not_used(filled):
    garbage(kept(filled))  # would be found, if anybody looked
    folder = filled / "foreword"
    of_somebody_else(folder)
    got = found(filled)
    (said,) = got.pop("said")
    assert got.items() <= WELL.items()
    assert str(folder) in said
    assert "not kept" in said
    assert kept(filled).read_bytes().startswith(b"garbage")


def test_own_folder_is_closed_to_others(filled):
    (filled / "foreword").chmod(0o777)
    assert found(filled) == WELL
    assert (filled / "foreword").stat().st_mode & 0o777 == 0o700


def test_folder_is_for_its_owner_alone(filled):
    assert (filled / "foreword").stat().st_mode & 0o777 == 0o700
    assert all(
        file.stat().st_mode & 0o022 == 0 for file in (filled / "foreword").iterdir()
    )


def test_relative_cache_is_ignored(tmp_path):
    home, where = tmp_path / "home", tmp_path / "where"
    home.mkdir()
    where.mkdir()
    assert found("relative", HOME=str(home), cwd=str(where)) == WELL
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
        subprocess.run(["umount", base], check=True)


@pytest.mark.parametrize(
    "kind",
    [
        without_write,
        pytest.param(without_exec, marks=root),
        pytest.param(without_room, marks=root),
    ],
)
def test_cache_that_cannot_be_used_costs_time_and_is_said_once(tmp_path, kind):
    places = kind(tmp_path / "cache")
    try:
        got = found(next(places), TMPDIR=str(tmp_path))
        (said,) = got.pop("said")
        assert got.items() <= WELL.items()
        assert "not kept" in said
    finally:
        places.close()
    assert [file.name for file in tmp_path.iterdir()] == ["cache"]


def test_many_processes_compile_at_once(tmp_path):
    processes = [started(tmp_path) for _ in range(4)]
    assert [ended(process) for process in processes] == [WELL] * 4
    assert kept(tmp_path).exists()
    assert {file.suffix for file in (tmp_path / "foreword").iterdir()} == {".so"}
    assert found(tmp_path) == WELL


@pytest.mark.parametrize(
    ("variable", "value", "why"),
    [
        (
            "CC",
            "/nonexistent",
            "there is no C compiler '/nonexistent', which the variable CC names",
        ),
        ("CC", "cc 'half", "the variable CC holds"),
        ("CC", "false", "false"),
        ("CC", "cc --no-such-option", "no-such-option"),
        ("FOREWORD_CFLAGS", "-include no/such/file.h", "no/such/file.h"),
        ("FOREWORD_CFLAGS", "'half", "the variable FOREWORD_CFLAGS holds"),
    ],
)
def test_what_is_wrong_with_the_compiler_is_said_once(tmp_path, variable, value, why):
    got = found(tmp_path, **{variable: value})
    (said,) = got["said"]
    assert why in said
    assert "PyTorch" in said
    assert why in got["reason"]
    assert got["compiled"] == [False, False]


def test_last_line_of_a_compiler_that_names_no_error_is_the_reason(tmp_path):
    compiler = tmp_path / "compiler"
    compiler.write_text(
        "#!/bin/sh\necho 'a word before' >&2\necho 'the disk is on fire' >&2\nexit 1\n"
    )
    compiler.chmod(0o755)
    (said,) = found(tmp_path, CC=str(compiler))["said"]
    assert "the disk is on fire" in said
    assert "a word before" not in said
