"""Files and batches of a server, in a folder; a tenant sees its own."""

import fcntl
import hashlib
import json
import logging
import os
import re
import secrets
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from math import inf
from pathlib import Path
from time import time
from typing import IO, Any

from foreword.errors import InvalidRequest, named, words
from foreword.files import cache
from foreword_server.batches.mirror import Mirror, reached
from foreword_server.batches.parts import StoredAnswers
from foreword_server.batches.storage import StorageError, is_url
from foreword_server.errors import ApiError
from foreword_server.log import NAME
from foreword_server.settings import Settings

FILE, BATCH = "file-", "batch_"
"""Beginnings of ids."""
ID = re.compile(r"(file-|batch_)[0-9a-f]{24}")
UNFINISHED = ("validating", "in_progress", "finalizing", "cancelling")
"""States of a batch that goes on after a restart."""
ENDED = ("completed", "failed", "expired", "cancelled")
FULL = 507
"""Status where the disk holds no more (RFC 4918)."""
KEPT_SECONDS = 30 * 24 * 60 * 60
"""Seconds. Files are deleted after this time, unless they name another, and batches
after it from their end (OpenAI's time).
"""
MOST_FILES = 1000
"""Files of one key."""
MOST_BATCHES = 1000
"""Batches of one key; the oldest that has ended makes room for a new one."""
Description = dict[str, Any]


class Store:
    """A folder with the files of each tenant, and descriptions of files and batches.

    The event loop owns it; it holds all descriptions in memory.
    """

    def __init__(
        self,
        folder: Path,
        room: float = inf,
        unfinished: float = inf,
        url: str | None = None,
    ) -> None:
        """Create the folder, and keep it for this process.

        `room`: bytes of the files of one key; `unfinished`: its batches; `url`: where
        copies are, from which it begins. Raises InvalidRequest where it cannot be
        written, or another server uses it.
        """
        self._mirror = Mirror(url, folder) if url else None
        self._folder = folder
        self._room, self._unfinished = room, unfinished
        self._entries: dict[str, dict[str, Description]] = defaultdict(dict)
        """Tenant -> id -> description."""
        self._held: Counter[str] = Counter()
        """Tenant -> bytes of its files, and of its uploads that arrive."""
        self._arriving = folder / ".arriving"
        try:
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            self._arriving.mkdir(mode=0o700, exist_ok=True)
            self._lock = _private(folder / ".lock")
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if self._mirror is not None:
                self._mirror.load()
            self._load()
        except StorageError as error:
            self._lock.close()
            raise InvalidRequest(str(error)) from error
        except BlockingIOError:
            self._lock.close()
            raise InvalidRequest(
                f"cannot keep files in {folder}: another server does. Give another "
                "folder"
            ) from None
        except OSError as error:
            raise InvalidRequest(
                f"cannot keep files in {folder}: {words(error)}. Give a folder that "
                "can be written"
            ) from error

    @classmethod
    def of(cls, settings: Settings) -> "Store | None":
        """Return the store of a server; None where it keeps no files."""
        if settings.files is None:
            return None
        url, quotas = str(settings.files), (settings.room, settings.batches)
        if not is_url(url):
            return cls(Path(url), *quotas)
        name = hashlib.sha256(url.encode()).hexdigest()[:32]
        return cls(cache() / "files" / name, *quotas, url)

    def close(self) -> None:
        """Let another process use the folder."""
        if self._mirror is not None:
            self._mirror.close()
        self._lock.close()

    @contextmanager
    def upload(self, tenant: str) -> Iterator[Callable[[int], None]]:
        """Hold room for an upload; yield a function that counts its bytes.

        Both raise ApiError 413 beyond the quota of the key.
        """
        held = 0

        def count(size: int) -> None:
            nonlocal held
            self._held[tenant] += size
            held += size
            self.check_room(tenant)

        self.check_room(tenant)
        try:
            yield count
        finally:
            self._held[tenant] -= held

    def check_room(self, tenant: str) -> None:
        """Raise ApiError 413 for a key whose files fill its quota."""
        files = sum(name.startswith(FILE) for name in self._entries[tenant])
        held = self._held[tenant]
        if files >= MOST_FILES or held > self._room:
            raise ApiError(
                413,
                f"cannot keep more for this key: it has {files} files of {MOST_FILES}, "
                f"and {held} bytes of {self._room} ('--max-stored'). Delete files",
                code="quota_exceeded",
            )

    @contextmanager
    def scratch(self) -> Iterator[IO[bytes]]:
        """Yield a new file, deleted unless it was added. ApiError 507: disk full."""
        path = self._arriving / secrets.token_hex(12)
        try:
            with _private(path) as file:
                yield file
        except OSError as error:
            raise _full(error) from error
        finally:
            with suppress(OSError):
                path.unlink(missing_ok=True)

    def add(
        self,
        tenant: str,
        name: str,
        purpose: str,
        file: IO[bytes],
        seconds: int = KEPT_SECONDS,
    ) -> Description:
        """Keep a file for seconds; return its description. ApiError 507: disk full."""
        now = int(time())
        about = {
            "id": f"{FILE}{secrets.token_hex(12)}",
            "object": "file",
            "bytes": 0,
            "created_at": now,
            "expires_at": now + seconds,
            "filename": name,
            "purpose": purpose,
            "status": "processed",
        }
        path = self.path(tenant, about["id"])
        try:
            file.flush()
            about["bytes"] = os.fstat(file.fileno()).st_size
            Path(file.name).replace(path)
            self._changed(path)
            self._describe(tenant, about)
        except OSError as error:
            path.unlink(missing_ok=True)
            raise _full(error) from error
        self._keep(tenant, about)
        return about

    def add_batch(self, tenant: str, batch: Description) -> None:
        """Keep a new batch. ApiError 429: too many of a key, 507: disk full."""
        batches = self.all(tenant, BATCH)
        ended = [other for other in batches if other["status"] in ENDED]
        if len(batches) - len(ended) >= self._unfinished:
            raise ApiError(
                429,
                f"cannot queue this batch: {self._unfinished} of this key have not "
                "ended ('--max-batches'). Wait for one, or cancel one",
                code="quota_exceeded",
                retry_after=60,
            )
        self.check_room(tenant)
        if len(batches) >= MOST_BATCHES:
            self.delete(tenant, ended[-1]["id"])
        self.save(tenant, batch, {})

    def save(self, tenant: str, batch: Description, changes: Description) -> None:
        """Keep changes of a batch, on disk first. ApiError 507: disk full."""
        try:
            self._describe(tenant, batch | changes)
        except OSError as error:
            raise _full(error) from error
        batch |= changes
        self._entries[tenant][batch["id"]] = batch

    def about(self, tenant: str, id: str, kind: str) -> Description:
        """Return a file or batch. Raises ApiError 404 if the tenant has none.

        `kind`: FILE or BATCH.
        """
        about = self._entries[tenant].get(id)
        if about is None or not id.startswith(kind):
            name = "batch" if kind == BATCH else "file"
            raise ApiError(
                404, f"cannot find the {name} {id!r}: this key has no such one"
            )
        return about

    def all(self, tenant: str, kind: str) -> list[Description]:
        """Return the descriptions of a kind, the newest first."""
        entries = reversed(self._entries[tenant].values())
        chosen = [about for about in entries if about["id"].startswith(kind)]
        return sorted(chosen, key=lambda about: -about["created_at"])

    def path(self, tenant: str, id: str, suffix: str = ".jsonl") -> Path:
        """Return where the content of a file is, or what a batch has written so far."""
        folder = self._of(tenant)
        if not folder.is_dir():
            folder.mkdir(mode=0o700)
            _write(folder / "tenant", tenant)
            self._changed(folder / "tenant")
        return folder / f"{id}{suffix}"

    async def fetched(self, tenant: str, id: str) -> Path:
        """Return where the content of a file is, once it is here."""
        path = self.path(tenant, id)
        if self._mirror is not None and not path.exists():
            await reached(partial(self._mirror.fetch, path))
        return path

    async def answers(self, tenant: str, id: str) -> StoredAnswers | None:
        """Return where a batch stores its answers, which are here then too; None: here
        alone.
        """
        if self._mirror is None:
            return None
        answers = self._mirror.answers(self.path(tenant, id))
        await reached(answers.fetch)
        return answers

    async def forget_answers(self, path: Path) -> None:
        """Delete the stored answers of a batch once its end is stored."""
        if self._mirror is not None:
            with suppress(ApiError):
                await self.settled()
                await reached(partial(self._mirror.delete_parts, path))

    async def settled(self) -> None:
        """Wait until all is where it outlives this machine. ApiError 503: it cannot."""
        if self._mirror is not None:
            await self._mirror.settled()

    async def kept(self, tenant: str, about: Description) -> Description:
        """Return a new file or batch once it is stored; delete it if it cannot be."""
        try:
            await self.settled()
        except ApiError:
            self.delete(tenant, about["id"])
            raise
        return about

    def delete(self, tenant: str, id: str) -> None:
        """Delete a file, or a batch that has ended."""
        about = self._entries[tenant].pop(id)
        self._held[tenant] -= about.get("bytes", 0)
        paths = [self.path(tenant, id, end) for end in (".json", ".jsonl", ".sent")]
        for path in paths:
            path.unlink(missing_ok=True)
        self._changed(*paths[:2])

    def delete_expired(self) -> None:
        """Delete files and batches whose time is over, but no file that is read."""
        now = time()
        read = {batch["input_file_id"] for _, batch in self.unfinished()}
        for tenant, about in [*self._each()]:
            if _end(about) <= now and about["id"] not in read:
                self.delete(tenant, about["id"])

    def unfinished(self) -> list[tuple[str, Description]]:
        """Return the tenants and batches that have not ended, the oldest first."""
        pairs = [pair for pair in self._each() if pair[1].get("status") in UNFINISHED]
        return sorted(pairs, key=lambda pair: pair[1]["created_at"])

    def _each(self) -> Iterator[tuple[str, Description]]:
        for tenant, entries in self._entries.items():
            for about in entries.values():
                yield tenant, about

    def hidden(self, tenant: str, text: str) -> str:
        """Return a text without the folder of a tenant."""
        return text.replace(f"{self._of(tenant)}/", "")

    def _load(self) -> None:
        """Read all descriptions; set aside what is damaged, and say so."""
        for path in self._arriving.iterdir():
            path.unlink()
        for path in self._folder.glob("*/*.json"):
            try:
                tenant = (path.parent / "tenant").read_text()
                about = json.loads(path.read_bytes())
                _end(about)
                if path != self._of(tenant) / f"{about['id']}.json":
                    raise ValueError("it describes another file")
                self._keep(tenant, about)
            except (ValueError, KeyError, TypeError, AttributeError) as error:
                logging.getLogger(NAME).error(
                    "cannot read %s: %s. It is set aside", path, named(error)
                )
                path.rename(path.with_suffix(".damaged"))

    def _of(self, tenant: str) -> Path:
        """Return the folder of a tenant."""
        return self._folder / hashlib.sha256(tenant.encode()).hexdigest()[:32]

    def _keep(self, tenant: str, about: Description) -> None:
        self._entries[tenant][about["id"]] = about
        self._held[tenant] += about.get("bytes", 0)

    def _describe(self, tenant: str, about: Description) -> None:
        path = self.path(tenant, about["id"], ".json")
        _write(path, json.dumps(about))
        self._changed(path)

    def _changed(self, *paths: Path) -> None:
        if self._mirror is not None:
            self._mirror.changed(*paths)


def _write(path: Path, text: str) -> None:
    """Write a whole file or none."""
    partial = path.with_name(f".{path.name}.partial")
    try:
        with _private(partial) as file:
            file.write(text.encode())
        partial.replace(path)
    except OSError:
        with suppress(OSError):
            partial.unlink()
        raise


def _end(about: Description) -> float:
    """Return when a description is deleted."""
    if about["object"] == "file":
        return about.get("expires_at", about["created_at"] + KEPT_SECONDS)
    if about["status"] in UNFINISHED:
        return inf
    return about[f"{about['status']}_at"] + KEPT_SECONDS


def _private(path: Path) -> IO[bytes]:
    """Open a file to write, which its owner alone can read."""
    return open(path, "wb", opener=lambda name, flags: os.open(name, flags, 0o600))


def _full(error: OSError) -> ApiError:
    return ApiError(
        FULL,
        f"cannot keep the file: {error.strerror or type(error).__name__}. Delete "
        "others and try again",
    )
