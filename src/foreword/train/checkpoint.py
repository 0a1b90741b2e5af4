"""Checkpoints that survive a kill at any moment: a folder is there whole or not at all. Knows files only."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

from foreword.disk import filling, sync

KEEP = 2
PREFIX, PARTIAL = "step-", ".partial-"


def save(folder: Path, step: int, write: Callable[[Path], None]) -> Path:
    """Let `write` fill a new folder, then give it its name in one move; older ones but for the last KEEP are removed.

    What is written is on the disk before it has its name, and the name before anything older goes.
    """
    folder.mkdir(parents=True, exist_ok=True)
    clean(folder)
    partial, whole = folder / f"{PARTIAL}{step}", folder / f"{PREFIX}{step:09d}"
    partial.mkdir()
    try:
        with filling(partial, folder):
            write(partial)
    except Exception:
        shutil.rmtree(partial)  # a full disk needs the room, and older checkpoints stay
        raise
    for path in (*partial.rglob("*"), partial):
        sync(path)
    if whole.exists():
        _remove(whole)
    partial.rename(whole)
    sync(folder)
    for old in found(folder)[:-KEEP]:
        _remove(old)
    return whole


def found(folder: Path) -> list[Path]:
    """The whole checkpoints of a folder, oldest first."""
    return sorted(folder.glob(f"{PREFIX}*"))


def clean(folder: Path) -> None:
    """Remove what an interrupted save or removal left."""
    for rest in folder.glob(f"{PARTIAL}*"):
        shutil.rmtree(rest)


def _remove(whole: Path) -> None:
    """Under another name first: a kill halfway must not leave half a folder that looks whole."""
    shutil.rmtree(whole.rename(whole.with_name(f"{PARTIAL}old-{whole.name}")))
