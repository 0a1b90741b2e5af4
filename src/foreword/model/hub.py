"""Files of a checkpoint: in a folder, in the cache of the hub, or on the hub, which is tried once.

Without a network every request of the hub's client is repeated for half a minute, and loading sends several.
"""

from __future__ import annotations

import time
from functools import lru_cache
from pathlib import Path
from threading import Thread

from huggingface_hub import constants, get_session
from transformers.utils.hub import cached_file

from foreword.errors import ModelError

PATIENCE = 2.0
"""Seconds. Longest wait for the hub's first answer, name look-up included; usually it takes a tenth."""
FRESH = 60.0
"""Seconds that one answer of the hub is believed: a model, its draft and both tokenizers are loaded within them."""


def local_only(source: str | Path) -> bool:
    """Whether the files of a checkpoint are looked for on this machine alone: a folder, or the hub does not answer.

    Raises ModelError for a hub id that is not in the cache when the hub does not answer.
    """
    if lost(source) or Path(source).expanduser().is_dir():
        return True
    if _answers(int(time.monotonic() / FRESH)):
        return False
    if cached_file(str(source), "config.json", local_files_only=True, **_SILENT) is None:
        raise ModelError(
            f"cannot load {str(source)!r}: there is no such folder, it is not in the cache of this machine, and "
            f"{constants.ENDPOINT} does not answer. Give a folder that holds config.json, or try again with a network"
        )
    return True


def file(source: str | Path, name: str) -> Path:
    """Where a file of a checkpoint is; a path that does not exist where it has none of that name.

    Raises OSError, or ModelError as `local_only` does.
    """
    folder = Path(source).expanduser()
    if folder.is_dir() or lost(source):
        return folder / name
    return Path(cached_file(str(source), name, local_files_only=local_only(source)) or name)


def lost(source: str | Path) -> bool:
    """Whether this can only be a folder, and there is none: the hub would say that it is no good as an id."""
    return str(source).startswith(("/", ".", "~")) and not Path(source).expanduser().exists()


_SILENT = {"_raise_exceptions_for_missing_entries": False, "_raise_exceptions_for_connection_errors": False}


@lru_cache(maxsize=1)
def _answers(moment: int) -> bool:
    """Whether the hub answers at all. `moment`: a number that changes when an older answer is no longer believed."""
    del moment
    heard: list[int] = []

    def ask() -> None:
        try:
            heard.append(get_session().head(constants.ENDPOINT, timeout=PATIENCE).status_code)
        except Exception:  # noqa: BLE001 - whatever the client of the day raises, there was no answer
            heard.clear()

    asking = Thread(target=ask, daemon=True)  # a name look-up has no time limit of its own
    asking.start()
    asking.join(PATIENCE)
    return bool(heard)
