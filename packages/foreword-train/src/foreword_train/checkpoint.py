"""Atomic checkpoints: a folder exists complete or not at all, even after a kill."""

import shutil
from collections.abc import Callable
from pathlib import Path

from foreword.errors import InvalidRequest
from foreword.files import atomic_fill, sync

CHECKPOINTS = "checkpoints"
"""Name of their folder in that of a training."""
KEEP = 2
"""Checkpoints kept."""
PREFIX, PARTIAL = "step-", ".partial-"


def save(folder: Path, step: int, write: Callable[[Path], None]) -> Path:
    """Let `write` fill a new folder, rename it in one move, and remove all checkpoints
    but the last KEEP.

    Its files are synced before the rename, and the rename before anything older is
    removed.
    """
    folder.mkdir(parents=True, exist_ok=True)
    clean(folder)
    partial, whole = folder / f"{PARTIAL}{step}", folder / f"{PREFIX}{step:09d}"
    partial.mkdir()
    try:
        with atomic_fill(partial, folder):
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
    """Return the complete checkpoints of a folder, oldest first."""
    return sorted(folder.glob(f"{PREFIX}*"))


def check_unused(training: Path, *, resume: bool) -> None:
    """Raise InvalidRequest if a folder holds a training that is not to be resumed."""
    if not resume and found(training / CHECKPOINTS):
        raise InvalidRequest(
            f"cannot start a training in {training}: it holds a training already. "
            "Resume it or choose another"
        )


def clean(folder: Path) -> None:
    """Remove leftovers of an interrupted save or removal."""
    for rest in folder.glob(f"{PARTIAL}*"):
        shutil.rmtree(rest)


def _remove(whole: Path) -> None:
    """Remove a checkpoint, renamed first: a kill halfway must not leave half a folder
    that looks complete.
    """
    shutil.rmtree(whole.rename(whole.with_name(f"{PARTIAL}old-{whole.name}")))
