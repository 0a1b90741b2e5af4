"""Folders on file systems of fsspec, such as object stores."""

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from foreword.errors import ForewordError, InvalidRequest, named, words


class StorageError(ForewordError):
    """A file system that cannot be read or written now."""


def is_url(place: str | Path) -> bool:
    """Return whether fsspec opens a place, not the file system of this machine."""
    return "://" in str(place)


class RemoteFolder:
    """A folder whose files are written whole. Methods may raise StorageError."""

    def __init__(self, url: str) -> None:
        """Raises InvalidRequest for a file system that is unknown or not installed."""
        from fsspec.core import url_to_fs
        from fsspec.registry import known_implementations

        self.url = url.rstrip("/")
        try:
            self._system, self._path = url_to_fs(url)
        except Exception as error:
            fix = "Give a URL that fsspec opens, such as s3://bucket/name"
            if isinstance(error, ImportError):
                known: Any = known_implementations.get(url.partition("://")[0], {})
                package = known.get("class", "fsspec").partition(".")[0]
                fix = f"Run: pip install {package}"
            raise InvalidRequest(f"cannot open {url}: {words(error)}. {fix}") from error

    def names(self) -> list[str]:
        """Return the names of its files, sorted."""
        with self._naming("read"), suppress(FileNotFoundError):
            self._system.invalidate_cache()
            paths = self._system.ls(self._path, detail=False)
            return sorted(path.rsplit("/", 1)[-1] for path in paths)
        return []

    def read(self, name: str) -> bytes:
        """Return a file."""
        with self._naming("read", name):
            return self._system.cat_file(self._of(name))

    def get(self, name: str, path: Path) -> None:
        """Copy a file to this machine, where it appears whole."""
        partial = path.with_name(f".{path.name}.partial")
        with self._naming("read", name):
            self._system.get_file(self._of(name), str(partial))
            partial.chmod(0o600)
            partial.replace(path)

    def write(self, name: str, content: bytes) -> None:
        """Write a file."""
        with self._naming("write", name):
            self._system.pipe_file(self._of(name), content)

    def put(self, path: Path, name: str) -> None:
        """Copy a file of this machine."""
        with self._naming("write", name):
            self._system.put_file(str(path), self._of(name))

    def delete(self, name: str) -> None:
        """Delete a file, if it is there."""
        with self._naming("delete", name), suppress(FileNotFoundError):
            self._system.rm_file(self._of(name))

    def _of(self, name: str) -> str:
        return f"{self._path.rstrip('/')}/{name}"

    @contextmanager
    def _naming(self, verb: str, name: str = "") -> Iterator[None]:
        """Raise StorageError for any error: each file system has its own."""
        try:
            yield
        except Exception as error:
            raise StorageError(
                f"cannot {verb} {self.url}/{name}: {named(error)}. Check that it "
                "exists, and the credentials"
            ) from error
