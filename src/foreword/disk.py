"""Files and folders that are there whole or not at all, whenever one is killed; places tried before work begins.

Knows files only.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

from foreword.errors import DiskError, InvalidRequest, words

FULL = re.compile(
    r"no space left|file too large|quota exceeded"
    r"|\d+ requested and \d+ written"  # numpy
    r"|inline_container\S+ \. unexpected pos",  # torch
    re.IGNORECASE,
)
"""What is said where a disk takes no more; not all of those who write raise an OSError with a number."""


@contextmanager
def room(place: Path) -> Iterator[None]:
    """Around what writes to a file or a folder: raises DiskError, with its name, where the disk is full."""
    try:
        yield
    except DiskError:
        raise
    except Exception as error:
        if not FULL.search(str(error)):
            raise
        raise DiskError(
            f"cannot write {place}: the disk is full, or a limit is reached ({words(error)}). "
            "Free some space and try again, or name another place"
        ) from error


@contextmanager
def filling(folder: Path, name: Path | None = None) -> Iterator[None]:
    """The same for a folder that is filled; its files get the modes that new files get (safetensors gives 0600)."""
    with room(name or folder):
        yield
    usual = folder.stat().st_mode & 0o666
    for path in folder.rglob("*"):
        if path.is_file():
            path.chmod(path.stat().st_mode & ~0o666 | usual)


@contextmanager
def appearing(folder: Path) -> Iterator[Path]:
    """An empty folder to fill, which gets its name when it is complete and on the disk.

    Where filling it fails nothing is left. Raises InvalidRequest where something has that name, before or after.
    """
    taken = InvalidRequest(f"{folder} exists already; remove it or name another folder")
    if folder.exists():
        raise taken
    makeable(folder)
    folder.parent.mkdir(parents=True, exist_ok=True)
    with TemporaryDirectory(prefix=f".{folder.name}-", dir=folder.parent) as around:  # for its owner's eyes alone
        begun = Path(around) / folder.name
        begun.mkdir()
        with filling(begun, folder):
            yield begun
        for path in (*begun.rglob("*"), begun):
            sync(path)
        try:
            begun.rename(folder)
        except OSError as error:
            raise (taken if folder.exists() else error) from error
    sync(folder.parent)


@contextmanager
def replacing(file: Path) -> Iterator[Path]:
    """Yield a new path to write; afterwards that file, on the disk, takes the place of `file` in one step.

    The folder of `file` is made where it is missing, for its owner alone.
    """
    file.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    with TemporaryDirectory(prefix=f".{file.name}-", dir=file.parent) as around:
        begun = Path(around) / file.name
        yield begun
        sync(begun)
        begun.replace(file)
    sync(file.parent)


def cache() -> Path:
    """Return the folder of what may be made anew: $XDG_CACHE_HOME/foreword, or ~/.cache/foreword.

    The XDG specification says to ignore a relative path. Raises OSError where the user has no home either.
    """
    named = Path(os.environ.get("XDG_CACHE_HOME", ""))
    if named.is_absolute():
        return named / "foreword"
    home = Path(os.path.expanduser("~"))  # noqa: PTH111 - Path.home raises an error that is no OSError
    if not home.is_absolute():
        raise FileNotFoundError("this user has no home folder; set XDG_CACHE_HOME to an absolute path")
    return home / ".cache" / "foreword"


def writable(file: Path) -> None:
    """Raise InvalidRequest where a file of this name could not be written: before there is something to lose."""
    folder = file.resolve().parent
    if not folder.is_dir() or file.is_dir() or not os.access(file if file.exists() else folder, os.W_OK):
        raise InvalidRequest(f"{file} cannot be written; name a file in a folder that exists and is yours")


def makeable(folder: Path) -> None:
    """Raise InvalidRequest where neither a folder of this name nor one that could be made can be written to."""
    whole = folder.resolve()
    there = next(path for path in (whole, *whole.parents) if path.exists())
    if not there.is_dir() or not os.access(there, os.W_OK):
        raise InvalidRequest(f"{folder} cannot be made in {there}; name a folder in another that is yours")


def sync(path: Path) -> None:
    """See to it that a file, or the list of names in a folder, is on the disk."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
