"""Atomic files and folders, checks that paths are writable, names of files in parts."""

import json
import os
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from hashlib import sha256
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from foreword.errors import DiskError, InvalidRequest, words

FULL = re.compile(
    r"no space left|file too large|quota exceeded"
    r"|\d+ requested and \d+ written"  # numpy
    r"|inline_container\S+ \. unexpected pos",  # torch
    re.IGNORECASE,
)
"""Error texts of a full disk; not every library raises an OSError with an errno."""
PART = re.compile(r"(.*)-(\d{5})-of-(\d{5})\.gguf", re.IGNORECASE)
"""Name of a part of a model in several GGUF files (llama.cpp, tools/gguf-split)."""

SETTINGS, SETTINGS_VARIABLE = "foreword.toml", "FOREWORD_TOML"
"""The file of settings, and the variable that names another one (empty = none)."""


def settings_path() -> Path | None:
    """Return the file of settings of this working directory, or the one that the
    environment names; None if there is none.
    """
    name = os.environ.get(SETTINGS_VARIABLE)
    if name is not None:
        return Path(name) if name else None
    file = Path(SETTINGS)
    return file if file.is_file() else None


@contextmanager
def room(path: Path) -> Iterator[None]:
    """Wrap code that writes to `path`. Raises DiskError if the disk is full."""
    try:
        yield
    except DiskError:
        raise
    except Exception as error:
        if not FULL.search(str(error)):
            raise
        raise DiskError(
            f"cannot write {path}: the disk is full, or a limit is reached "
            f"({words(error)}). Free some space and try again, or choose another path"
        ) from error


@contextmanager
def atomic_fill(folder: Path, name: Path | None = None) -> Iterator[None]:
    """Wrap code that fills a folder, as `room`; its files get the default mode."""
    with room(name or folder):
        yield
    mode = folder.stat().st_mode & 0o666
    for path in folder.rglob("*"):
        if path.is_file():
            path.chmod(path.stat().st_mode & ~0o666 | mode)


@contextmanager
def atomic_folder(folder: Path) -> Iterator[Path]:
    """Yield an empty folder to fill; it gets its final name once it is complete and
    synced to disk.

    If filling it fails, nothing is left. Raises InvalidRequest if `folder` exists,
    before or after.
    """
    exists_error = InvalidRequest(
        f"cannot create a folder: {folder} exists already. Remove it or choose another "
        "path"
    )
    if folder.exists():
        raise exists_error
    check_creatable(folder)
    folder.parent.mkdir(parents=True, exist_ok=True)
    # readable by its owner only
    with TemporaryDirectory(prefix=f".{folder.name}-", dir=folder.parent) as temporary:
        partial = Path(temporary) / folder.name
        partial.mkdir()
        with atomic_fill(partial, folder):
            yield partial
        for path in (*partial.rglob("*"), partial):
            sync(path)
        try:
            partial.rename(folder)
        except OSError as error:
            raise (exists_error if folder.exists() else error) from error
    sync(folder.parent)


@contextmanager
def atomic_file(file: Path) -> Iterator[Path]:
    """Yield a new path to write; afterwards that file is synced and replaces `file` in
    one step.

    A missing parent folder is created with mode 0700.
    """
    file.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    with TemporaryDirectory(prefix=f".{file.name}-", dir=file.parent) as temporary:
        partial = Path(temporary) / file.name
        yield partial
        sync(partial)
        partial.replace(file)
    sync(file.parent)


def cache() -> Path:
    """Return the cache folder: $XDG_CACHE_HOME/foreword, or ~/.cache/foreword.

    The XDG specification says to ignore a relative path. Raises OSError if the user has
    no home folder either.
    """
    configured = Path(os.environ.get("XDG_CACHE_HOME", ""))
    if configured.is_absolute():
        return configured / "foreword"
    home = Path(os.path.expanduser("~"))  # noqa: PTH111 - Path.home raises RuntimeError
    if not home.is_absolute():
        raise FileNotFoundError(
            "cannot find a cache folder: this user has no home folder. Set "
            "XDG_CACHE_HOME to an absolute path"
        )
    return home / ".cache" / "foreword"


class CachedValues:
    """Values that were measured once, in a JSON file of the cache folder.

    An unreadable file, one for another key, and a folder that cannot be written count
    as no values.
    """

    def __init__(
        self, kind: str, key: Mapping[str, Any], folder: Path | None = None
    ) -> None:
        """`kind` names the subfolder; `folder` replaces it."""
        text = json.dumps(key, sort_keys=True, default=str)
        self._key = json.loads(text)
        digest = sha256(text.encode()).hexdigest()[:16]
        self.file: Path | None = None
        with suppress(OSError):
            self.file = (folder or cache() / kind) / f"{digest}.json"

    def read(self) -> dict[str, Any] | None:
        """Return the values, or None."""
        if self.file is None:
            return None
        try:
            values = json.loads(self.file.read_text(encoding="utf-8"))
            return values if values.pop("key") == self._key else None
        except (OSError, ValueError, TypeError, KeyError, AttributeError):
            return None
        except RecursionError:
            return None

    def write(self, values: Mapping[str, Any]) -> None:
        """Replace the values."""
        if self.file is None:
            return
        text = json.dumps({"key": self._key, **values}, indent=1) + "\n"
        with suppress(OSError), atomic_file(self.file) as partial:
            partial.write_text(text, encoding="utf-8")


def check_writable(file: Path) -> None:
    """Raise InvalidRequest if the file cannot be written, before any work starts."""
    folder = file.resolve().parent
    if (
        not folder.is_dir()
        or file.is_dir()
        or not os.access(file if file.exists() else folder, os.W_OK)
    ):
        raise InvalidRequest(
            f"cannot write {file}: choose a path in an existing, writable folder"
        )


def check_creatable(folder: Path) -> None:
    """Raise InvalidRequest if the folder cannot be created or written to."""
    target = folder.resolve()
    existing = next(path for path in (target, *target.parents) if path.exists())
    if not existing.is_dir() or not os.access(existing, os.W_OK):
        raise InvalidRequest(
            f"cannot create {folder} in {existing}: choose a path in a writable folder"
        )


def sync(path: Path) -> None:
    """Sync a file, or the entries of a folder, to disk."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def part_names(name: str) -> list[str]:
    """Return the names of all parts of a model, by the name of one of them; a file that
    is not a part is the only one.
    """
    match = PART.fullmatch(name)
    if match is None:
        return [name]
    count = int(match[3])
    if not 0 < int(match[2]) <= count:
        return [name]
    base = match[1]
    ending = name[-len(".gguf") :]
    return [
        f"{base}-{number:05d}-of-{match[3]}{ending}" for number in range(1, count + 1)
    ]


def part_paths(path: Path) -> list[Path]:
    """Return the paths of all parts of a model, which may not exist, by one of them."""
    return [path.with_name(name) for name in part_names(path.name)]


def model_name(name: str) -> str:
    """Return the name of a model in a GGUF file, without ending and part number."""
    match = PART.fullmatch(name)
    return Path(name).stem if match is None else match[1]
