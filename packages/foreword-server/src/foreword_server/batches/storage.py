"""Files on any file system of fsspec, such as an object store, written whole."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from foreword.errors import ForewordError, InvalidRequest, named, words


class StorageError(ForewordError):
    """A file system that cannot be read or written now."""


def is_url(place: str | Path) -> bool:
    """Return whether fsspec opens a place, not the file system of this machine."""
    return "://" in str(place)


def fetch(url: str, path: Path) -> None:
    """Copy a file to this machine. Raises InvalidRequest if it cannot be read."""
    system, source = _opened(url)
    try:
        with _naming(f"cannot read {url}"):
            system.get_file(source, str(path))
    except StorageError as error:
        raise InvalidRequest(str(error)) from error


@dataclass(frozen=True, slots=True)
class RemoteFolder:
    """A folder whose files are written whole, each at once."""

    url: str
    _system: Any
    _path: str

    @classmethod
    def of(cls, url: str) -> "RemoteFolder":
        """Return a folder, which need not exist in a store without folders.

        Raises InvalidRequest for a file system that is not installed.
        """
        system, path = _opened(url)
        return cls(url.rstrip("/"), system, path.rstrip("/"))

    def names(self) -> list[str]:
        """Return the names of its files, sorted."""
        with _naming(f"cannot read {self.url}"):
            self._system.invalidate_cache()
            try:
                paths = self._system.ls(self._path, detail=False)
            except FileNotFoundError:
                return []
        return sorted(path.rsplit("/", 1)[-1] for path in paths)

    def read(self, name: str) -> bytes:
        """Return a file."""
        with _naming(f"cannot read {self.url}/{name}"):
            return self._system.cat_file(self._of(name))

    def get(self, name: str, path: Path) -> None:
        """Copy a file to this machine, where it appears whole."""
        partial = path.with_name(f".{path.name}.partial")
        with _naming(f"cannot read {self.url}/{name}"):
            self._system.get_file(self._of(name), str(partial))
            partial.chmod(0o600)
            partial.replace(path)

    def write(self, name: str, content: bytes) -> None:
        """Write a file."""
        with _naming(f"cannot write {self.url}/{name}"):
            self._system.pipe_file(self._of(name), content)

    def put(self, path: Path, name: str) -> None:
        """Copy a file of this machine."""
        with _naming(f"cannot write {self.url}/{name}"):
            self._system.put_file(str(path), self._of(name))

    def delete(self, name: str) -> None:
        """Delete a file, if it is there."""
        with _naming(f"cannot delete {self.url}/{name}"):
            try:
                self._system.rm_file(self._of(name))
            except FileNotFoundError:
                return

    def _of(self, name: str) -> str:
        return f"{self._path}/{name}"


def _opened(url: str) -> tuple[Any, str]:
    """Return the file system of a URL, and the path there."""
    from fsspec.core import url_to_fs
    from fsspec.registry import known_implementations

    protocol = url.partition("://")[0]
    try:
        return url_to_fs(url)
    except ImportError as error:
        known = known_implementations.get(protocol, {}).get("class", protocol)
        package = known.partition(".")[0]
        raise InvalidRequest(
            f"cannot open {url}: {words(error)}. Run: pip install {package}"
        ) from error
    except Exception as error:
        raise InvalidRequest(
            f"cannot open {url}: {words(error)}. Give a URL that fsspec opens, such as "
            "s3://bucket/name"
        ) from error


@contextmanager
def _naming(action: str) -> Iterator[None]:
    """Raise StorageError for any error: each file system has its own."""
    try:
        yield
    except Exception as error:
        raise StorageError(
            f"{action}: {named(error)}. Check that it exists, and the credentials"
        ) from error
