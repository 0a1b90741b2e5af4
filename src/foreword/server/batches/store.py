"""Files and batches of a server, in a folder; a tenant sees its own."""

from __future__ import annotations

import fcntl
import hashlib
import json
import re
import secrets
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from time import time
from typing import Any

from foreword.errors import InvalidRequest, words
from foreword.server.errors import ApiError

FILE, BATCH = "file-", "batch_"
"""Beginnings of ids."""
ID = re.compile(r"(file-|batch_)[0-9a-f]{24}")
UNFINISHED = ("validating", "in_progress", "finalizing", "cancelling")
"""States of a batch that goes on after a restart."""
FULL = 507
"""Status where the disk holds no more (RFC 4918)."""


class Store:
    """A folder with the files of each tenant, and descriptions of files and batches."""

    def __init__(self, folder: Path) -> None:
        """Create the folder, and keep it for this process.

        Raises InvalidRequest where it cannot be written, or another server uses it.
        """
        self._folder = folder
        try:
            folder.mkdir(parents=True, exist_ok=True)
            self._lock = (folder / ".lock").open("w")
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
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

    def close(self) -> None:
        """Let another process use the folder."""
        self._lock.close()

    def add(
        self, tenant: str, name: str, purpose: str, content: bytes
    ) -> dict[str, Any]:
        """Keep a file; return its description.

        Raises ApiError 507 where the disk is full.
        """
        about = {
            "id": f"{FILE}{secrets.token_hex(12)}",
            "object": "file",
            "bytes": len(content),
            "created_at": int(time()),
            "filename": name,
            "purpose": purpose,
            "status": "processed",
        }
        path = self.path(tenant, about["id"])
        _write(path, content)
        self._describe(tenant, about)
        return about

    def save(self, tenant: str, batch: dict[str, Any]) -> None:
        """Keep the description of a batch, or its new one."""
        self._describe(tenant, batch)

    def about(self, tenant: str, id: str) -> dict[str, Any]:
        """Return the description of a file or batch.

        Raises ApiError 404 if the tenant has no such one.
        """
        if ID.fullmatch(id):
            try:
                return json.loads(self._description(tenant, id).read_bytes())
            except FileNotFoundError:
                pass
        kind = "batch" if id.startswith(BATCH) else "file"
        raise ApiError(404, f"cannot find the {kind} {id!r}: this key has no such one")

    def all(self, tenant: str, kind: str) -> list[dict[str, Any]]:
        """Return the descriptions of a kind, the newest first."""
        paths = self._of(tenant).glob(f"{kind}*.json")
        found = [json.loads(path.read_bytes()) for path in paths]
        return sorted(found, key=lambda one: (-one["created_at"], one["id"]))

    def path(self, tenant: str, id: str) -> Path:
        """Return where the content of a file is, or what a batch has written so far."""
        return self._of(tenant) / f"{id}.jsonl"

    def delete(self, tenant: str, id: str) -> None:
        """Delete a file."""
        for path in (self._description(tenant, id), self.path(tenant, id)):
            path.unlink(missing_ok=True)

    def unfinished(self) -> Iterator[tuple[str, dict[str, Any]]]:
        """Yield the tenants and batches that have not ended, the oldest first."""
        found = [
            (json.loads(path.read_bytes()), path)
            for path in self._folder.glob(f"*/{BATCH}*.json")
        ]
        for batch, path in sorted(found, key=lambda one: one[0]["created_at"]):
            if batch["status"] in UNFINISHED:
                yield (path.parent / "tenant").read_text(), batch

    def _of(self, tenant: str) -> Path:
        """Return the folder of a tenant."""
        digest = hashlib.sha256(tenant.encode()).hexdigest()[:32]
        folder = self._folder / digest
        if not folder.is_dir():
            folder.mkdir(parents=True)
            (folder / "tenant").write_text(tenant)
        return folder

    def _description(self, tenant: str, id: str) -> Path:
        return self._of(tenant) / f"{id}.json"

    def _describe(self, tenant: str, about: dict[str, Any]) -> None:
        _write(self._description(tenant, about["id"]), json.dumps(about).encode())


def _write(path: Path, content: bytes) -> None:
    """Write a whole file or none."""
    partial = path.with_name(f".{path.name}.partial")
    try:
        partial.write_bytes(content)
        partial.replace(path)
    except OSError as error:
        with suppress(OSError):
            partial.unlink()
        raise ApiError(
            FULL, f"cannot keep the file: {words(error)}. Delete others and try again"
        ) from error
