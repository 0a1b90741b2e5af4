"""A file of answers on another file system: a copy here, stored there part by part."""

import secrets
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from threading import Event, Thread

from foreword_server.batches.storage import RemoteFolder, StorageError

PART_SECONDS = 30.0
"""Seconds between two parts: a killed program loses the answers of so long."""


class StoredAnswers:
    """A file of answers in a folder, and the copy to which a program appends.

    Object stores cannot append, so new answers are files of their own until the last
    one is written; then one file holds all. Their names begin with the file's.
    """

    def __init__(self, folder: RemoteFolder, name: str, path: Path) -> None:
        self._folder, self._name = folder, name
        self._path = path
        self._prefix = f"{name}.part-"
        self._parts: list[str] = []
        """Names of the parts that are stored."""
        self._end = 0
        """Bytes of the copy that are stored."""

    def fetch(self) -> None:
        """Add to the copy what is stored; an answer may stand in it twice then."""
        names = self._folder.names()
        self._parts = [name for name in names if name.startswith(self._prefix)]
        with self._path.open("ab") as copy:
            copy.truncate(_whole_lines(self._path.read_bytes()))
            for name in [self._name] * (self._name in names) + self._parts:
                content = self._folder.read(name)
                copy.write(content[: _whole_lines(content)])

    def check(self) -> None:
        """Raise StorageError if parts cannot be stored."""
        self._write(b"")

    def store(self) -> None:
        """Store the whole lines that are new."""
        with self._path.open("rb") as copy:
            copy.seek(self._end)
            text = copy.read()
        text = text[: _whole_lines(text)]
        if text:
            self._write(text)
            self._end += len(text)

    @contextmanager
    def storing(self, failed: Callable[[StorageError], object]) -> Iterator[None]:
        """Store what is appended meanwhile, in a thread.

        `failed` gets the error of a part; the next one holds its lines too.
        """
        self._end = self._path.stat().st_size
        ended = Event()

        def work() -> None:
            last = False
            while not last:
                last = ended.wait(PART_SECONDS)
                try:
                    self.store()
                except StorageError as error:
                    failed(error)

        thread = Thread(target=work, daemon=True)
        thread.start()
        try:
            yield
        finally:
            ended.set()
            thread.join()

    def finish(self) -> None:
        """Store the whole file, then delete its parts."""
        self._folder.put(self._path, self._name)
        for name in self._parts:
            self._folder.delete(name)

    def _write(self, text: bytes) -> None:
        # no run writes over a part of another
        name = f"{self._prefix}{len(self._parts):06}-{secrets.token_hex(4)}"
        self._folder.write(name, text)
        self._parts.append(name)


def _whole_lines(text: bytes) -> int:
    """Return the bytes up to the last line end."""
    return text.rfind(b"\n") + 1
