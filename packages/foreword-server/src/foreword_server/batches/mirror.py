"""Copies of a server's files on another file system, so that they outlive a machine."""

import asyncio
import logging
import re
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from foreword_server.batches.parts import StoredAnswers
from foreword_server.batches.storage import RemoteFolder, StorageError
from foreword_server.errors import ApiError
from foreword_server.log import NAME

COPY = re.compile(r"([0-9a-f]{32})\.(tenant|(?:file-|batch_)[0-9a-f]{24}\.jsonl?)")
"""Name of a copy: the folder of its tenant, and its name in that."""
LOADERS = 16
"""Descriptions that are read at a time."""


class Mirror:
    """Whole copies of the files of a folder, written in the order of changes."""

    def __init__(self, url: str, folder: Path) -> None:
        self._remote, self._folder = RemoteFolder(url), folder
        self._due: list[Path] = []
        """Files that have changed. The thread owns it."""
        self._thread = ThreadPoolExecutor(1)
        self.close = self._thread.shutdown

    def load(self) -> None:
        """Make the descriptions here equal to their copies. Raises StorageError."""
        self._remote.write("server", b"")  # it fails here, not at the first upload
        matches = [COPY.fullmatch(name) for name in self._remote.names()]
        paths = {self._folder / match[1] / match[2] for match in matches if match}
        for old in self._folder.glob("*/*.json*"):
            if old.with_suffix(".json") not in paths:
                old.unlink()
        for path in paths:
            path.parent.mkdir(mode=0o700, exist_ok=True)
        with ThreadPoolExecutor(LOADERS) as threads:
            described = [path for path in paths if path.suffix != ".jsonl"]
            list(threads.map(self.fetch, described))

    def fetch(self, path: Path) -> None:
        """Copy a file to the folder. Raises StorageError."""
        self._remote.get(_name(path), path)

    def answers(self, path: Path) -> StoredAnswers:
        """Return the copy of a file to which a batch appends."""
        return StoredAnswers(self._remote, _name(path), path)

    def changed(self, *paths: Path) -> None:
        """Store these files soon, or delete their copies where they are gone."""
        self._thread.submit(self._store, *paths)

    async def settled(self) -> None:
        """Wait until all changes are stored. Raises ApiError 503 if some cannot be."""
        await reached(self._thread.submit(self._store).result)

    def delete_parts(self, path: Path) -> None:
        """Delete the copies of the answers of a batch. Raises StorageError."""
        for name in self._remote.names():
            if name.startswith(f"{_name(path)}.part-"):
                self._remote.delete(name)

    def _store(self, *paths: Path) -> None:
        self._due += paths
        while self._due:
            path = self._due[0]
            if path.exists():
                self._remote.put(path, _name(path))
            else:
                self._remote.delete(_name(path))
            del self._due[0]


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
