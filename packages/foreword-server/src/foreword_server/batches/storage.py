"""Folders on file systems of fsspec, such as object stores."""

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from foreword.errors import ForewordError, InvalidRequest, named, words


class StorageError(ForewordError):
    """A file system that cannot be read or written now."""


def is_url(path: str | Path) -> bool:
    """Return whether fsspec opens a path, not the file system of this machine."""
    return "://" in str(path)


class RemoteFolder:
    """A folder whose files are written whole. Methods may raise StorageError."""

    def __init__(self, url: str) -> None:
        """Raises InvalidRequest for a file system that is unknown or not installed."""
        from fsspec.core import url_to_fs
        from fsspec.registry import known_implementations

        self.url = url.rstrip("/")
        try:
            self._fs, self._path = url_to_fs(url)
        except Exception as error:
            fix = "Give a URL that fsspec opens, such as s3://bucket/name"
            if isinstance(error, ImportError):
                protocol = url.partition("://")[0]
                entry: Any = known_implementations[protocol]
                package = entry["class"].partition(".")[0]
                fix = f"Run: pip install {package}"
            reason = words(error)
            raise InvalidRequest(f"cannot open {url}: {reason}. {fix}") from error

    def names(self) -> list[str]:
        """Return the names of its files, sorted."""
        fs = self._fs
        fs.invalidate_cache()
        paths: list[str] = []
        with self._naming("read"), suppress(FileNotFoundError):
            paths = fs.ls(self._path, detail=False)
        names = [path.rpartition("/")[2] for path in paths]
        return sorted(names)

    def read(self, name: str) -> bytes:
        """Return a file."""
        with self._naming("read", name):
            content: bytes = self._fs.cat_file(self._of(name))
        return content

    def get(self, name: str, path: Path) -> None:
        """Copy a file to this machine, where it appears whole."""
        partial = path.with_name(f".{path.name}.partial")
        with self._naming("read", name):
            self._fs.get_file(self._of(name), partial)
            partial.chmod(0o600)
            partial.replace(path)

    def write(self, name: str, content: bytes) -> None:
        """Write a file."""
        with self._naming("write", name):
            self._fs.pipe_file(self._of(name), content)

    def put(self, path: Path, name: str) -> None:
        """Copy a file of this machine."""
        with self._naming("write", name):
            self._fs.put_file(path, self._of(name))

    def delete(self, name: str) -> None:
        """Delete a file, if it is there."""
        path = self._of(name)
        with self._naming("delete", name):
            if self._fs.exists(path):
                self._fs.rm_file(path)

    def _of(self, name: str) -> str:
        return f"{self._path.rstrip('/')}/{name}"

    @contextmanager
    def _naming(self, verb: str, name: str = "") -> Iterator[None]:
        """Raise StorageError for any error: each file system has its own."""
        try:
            yield
        except Exception as error:
            reason = named(error)
            raise StorageError(
                f"cannot {verb} {self.url}/{name}: {reason}. "
                "Check that it exists, and the credentials"
            ) from error
