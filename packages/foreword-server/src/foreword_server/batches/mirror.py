"""The folder of a server's files on another file system, so that it outlives a machine.

Each file is written whole, in the order of changes, by a thread.
"""

import asyncio
import logging
import re
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Lock

from foreword_server.batches.parts import StoredAnswers
from foreword_server.batches.storage import RemoteFolder, StorageError
from foreword_server.errors import ApiError
from foreword_server.log import NAME

STORED = re.compile(r"([0-9a-f]{32})\.(tenant|(?:file-|batch_)[0-9a-f]{24}\.jsonl?)")
"""Name of a file there: the folder of its tenant, and its name in that."""
CHECK = "server"
"""File that is written at the start, to know that others can be."""
LOADERS = 16
"""Descriptions that are read at a time."""


class Mirror:
    """Copies of the files of a folder."""

    def __init__(self, url: str, folder: Path) -> None:
        """Raises InvalidRequest for a URL that fsspec cannot open."""
        self._remote, self._folder = RemoteFolder.of(url), folder
        self._due: dict[Path, int] = {}
        """Changed file -> number of the change, the oldest first."""
        self._changes = 0
        self._lock = Lock()
        self._thread = ThreadPoolExecutor(1)

    def load(self) -> None:
        """Make the descriptions here those of the copies; contents are read later.

        Raises StorageError.
        """
        self._remote.write(CHECK, b"")
        found = [STORED.fullmatch(name) for name in self._remote.names()]
        paths = {self._folder / match[1] / match[2] for match in found if match}
        for path in self._folder.glob("*/*.json"):
            if path not in paths:
                for old in path.parent.glob(f"{path.stem}.*"):
                    old.unlink()
        for folder in {path.parent for path in paths}:
            folder.mkdir(mode=0o700, exist_ok=True)
        with ThreadPoolExecutor(LOADERS) as threads:
            described = [path for path in paths if path.suffix != ".jsonl"]
            list(threads.map(self.fetch, described))

    def fetch(self, path: Path) -> None:
        """Copy a file to the folder. Raises StorageError."""
        self._remote.get(_name(path), path)

    def answers(self, path: Path) -> StoredAnswers:
        """Return the copy of a file to which a batch appends."""
        return StoredAnswers(self._remote, _name(path), path)

    def delete_parts(self, path: Path) -> None:
        """Delete all that `answers` stored for this file."""
        for name in self._remote.names():
            if name.startswith(f"{_name(path)}.part-"):
                self._remote.delete(name)

    def changed(self, paths: Iterable[Path]) -> None:
        """Store these files soon, or delete them there if they are not here."""
        with self._lock:
            for path in paths:
                self._changes += 1
                self._due[path] = self._changes
        self._thread.submit(self._try)

    async def settled(self) -> None:
        """Wait until all changes are stored. Raises ApiError 503 if some cannot be."""
        await reached(self._thread.submit(self._store).result)

    def close(self) -> None:
        """Store what has changed, and end the thread."""
        self._thread.submit(self._try)
        self._thread.shutdown()

    def _try(self) -> None:
        try:
            self._store()
        except StorageError as error:
            unavailable(error)

    def _store(self) -> None:
        while True:
            with self._lock:
                if not self._due:
                    return
                path, change = next(iter(self._due.items()))
            if path.exists():
                self._remote.put(path, _name(path))
            else:
                self._remote.delete(_name(path))
            with self._lock:
                if self._due[path] == change:
                    del self._due[path]


async def reached(work: Callable[[], object]) -> None:
    """Do some work in a thread. Raises ApiError 503 if the storage fails."""
    try:
        await asyncio.to_thread(work)
    except StorageError as error:
        raise unavailable(error) from None


def unavailable(error: StorageError) -> ApiError:
    """Log why files cannot be read or kept; return the error of a client."""
    logging.getLogger(NAME).error("%s", error)
    return ApiError(
        503,
        "cannot reach the storage of files: see the log of the server. Try again later",
        retry_after=60,
    )


def _name(path: Path) -> str:
    return f"{path.parent.name}.{path.name}"
