"""Folders that are there whole or not at all, whenever one is killed. Knows files only."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

from foreword.errors import InvalidRequest


@contextmanager
def appearing(folder: Path) -> Iterator[Path]:
    """An empty folder to fill, which gets its name when it is complete and on the disk.

    Where filling it fails nothing is left. Raises InvalidRequest where something has that name, before or after.
    """
    taken = InvalidRequest(f"{folder} exists already; remove it or name another folder")
    if folder.exists():
        raise taken
    folder.parent.mkdir(parents=True, exist_ok=True)
    with TemporaryDirectory(prefix=f".{folder.name}-", dir=folder.parent) as around:  # for its owner's eyes alone
        begun = Path(around) / folder.name
        begun.mkdir()
        yield begun
        for path in (*begun.rglob("*"), begun):
            sync(path)
        try:
            begun.rename(folder)
        except OSError as error:
            raise (taken if folder.exists() else error) from error
    sync(folder.parent)


def sync(path: Path) -> None:
    """See to it that a file, or the list of names in a folder, is on the disk."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
