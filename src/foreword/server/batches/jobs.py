"""Batches of a server: one at a time, in the order they came, beside its other
requests.
"""

from __future__ import annotations

import asyncio
import json
import logging
from dataclasses import dataclass, field
from pathlib import Path
from time import time
from typing import Any

from foreword.errors import ForewordError, named
from foreword.server.batches.inside import Inside
from foreword.server.batches.lines import Fault, RequestFile
from foreword.server.batches.results import GOOD, Counts, Response, ResultFile
from foreword.server.batches.run import run
from foreword.server.batches.store import UNFINISHED, Store
from foreword.server.errors import ApiError
from foreword.server.log import NAME

LATER = 1000
"""Priority of a request that names none: clients who wait come first."""
Batch = dict[str, Any]


@dataclass(slots=True)
class Batches:
    """The batches of a store, and the task that answers them."""

    store: Store
    app: Any
    """The routes that answer."""
    width: int
    """Requests of a batch at a time."""
    _queue: asyncio.Queue[tuple[str, str]] = field(default_factory=asyncio.Queue)
    """(tenant, batch id)."""
    _running: dict[str, asyncio.Task[None]] = field(default_factory=dict)
    _counts: dict[str, Counts] = field(default_factory=dict)
    _worker: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Go on with the batches that have not ended, then with new ones."""
        for tenant, batch in self.store.unfinished():
            self._queue.put_nowait((tenant, batch["id"]))
        self._worker = asyncio.create_task(self._work())

    async def stop(self) -> None:
        """Stop; the next start goes on."""
        if self._worker is not None:
            self._worker.cancel()
            await asyncio.gather(self._worker, return_exceptions=True)

    def add(self, tenant: str, batch: Batch) -> None:
        """Keep a new batch and queue it."""
        self.store.save(tenant, batch)
        self._queue.put_nowait((tenant, batch["id"]))

    def about(self, tenant: str, id: str) -> Batch:
        """Return a batch with its counts so far."""
        batch = self.store.about(tenant, id)
        if (counts := self._counts.get(id)) is not None:
            batch["request_counts"] |= _counted(counts)
        return batch

    def cancel(self, tenant: str, id: str) -> Batch:
        """Have a batch end with the answers that it has.

        Raises ApiError 400 for one that has ended.
        """
        batch = self.about(tenant, id)
        if batch["status"] not in UNFINISHED:
            state = batch["status"]
            raise ApiError(
                400,
                f"cannot cancel the batch {id!r}: it is {state}",
            )
        if batch["status"] == "cancelling":
            return batch
        self._mark(tenant, batch, "cancelling")
        if (task := self._running.get(id)) is not None:
            task.cancel()
        return batch

    def check_unused(self, tenant: str, file: str) -> None:
        """Raise ApiError 400 while a batch reads this file."""
        for owner, batch in self.store.unfinished():
            if (owner, batch["input_file_id"]) == (tenant, file):
                raise ApiError(
                    400,
                    f"cannot delete the file {file!r}: the batch {batch['id']} reads "
                    "it. Cancel that first",
                )

    async def _work(self) -> None:
        while True:
            tenant, name = await self._queue.get()
            if await self._is_cancelled(tenant, name):
                # once more, to keep its end
                await self._is_cancelled(tenant, name)

    async def _is_cancelled(self, tenant: str, name: str) -> bool:
        """Answer a batch; return whether a client cancelled it meanwhile."""
        task = asyncio.create_task(self._run(tenant, name))
        self._running[name] = task
        try:
            await asyncio.wait((task,))
        except asyncio.CancelledError:  # the server stops
            task.cancel()
            await asyncio.wait((task,))
            raise
        finally:
            self._running.pop(name)
            self._counts.pop(name, None)
        if task.cancelled():
            return True
        if (error := task.exception()) is not None:
            # not even its end could be kept; a restart goes on with it
            logging.getLogger(NAME).error(
                "batch %s stopped",
                name,
                exc_info=error,
            )
        return False

    async def _run(self, tenant: str, name: str) -> None:
        """Answer a batch, and keep its end, whatever that is."""
        batch = self.store.about(tenant, name)
        try:
            if batch["status"] == "cancelling":
                await self._finish(tenant, batch, "cancelled")
                return
            await self._answer(tenant, batch)
        except TimeoutError:
            await self._finish(tenant, batch, "expired")
        except ForewordError as error:
            self._fail(tenant, batch, str(error))
        except Exception as error:  # noqa: BLE001 - the next batch must go on
            self._fail(tenant, batch, named(error))

    async def _answer(self, tenant: str, batch: Batch) -> None:
        store, name = self.store, batch["id"]
        source = store.path(tenant, batch["input_file_id"])
        read = await asyncio.to_thread(
            RequestFile,
            source,
            batch["endpoint"],
        )
        batch["request_counts"]["total"] = len(read.lines)
        if read.faults or not read.lines:
            self._refuse(tenant, batch, read.faults)
            return
        self._mark(tenant, batch, "in_progress")
        inside = Inside(self.app, tenant)

        async def post(path: str, body: Batch) -> Response:
            later = {"priority": LATER}
            return await inside.post(path, later | body)

        left = batch["expires_at"] - time()
        async with asyncio.timeout(max(0.0, left)):
            with ResultFile(store.path(tenant, name)) as results:
                self._counts[name] = results.counts
                done = await asyncio.to_thread(
                    results.resume,
                    read.lines,
                )
                await run(
                    [one for one in read.lines if one.custom_id not in done],
                    read.body,
                    post,
                    results.write,
                    self.width,
                )
        batch["request_counts"] |= _counted(results.counts)
        self._mark(tenant, batch, "finalizing")
        await self._finish(tenant, batch, "completed")

    async def _finish(
        self,
        tenant: str,
        batch: Batch,
        status: str,
    ) -> None:
        """End a batch: its answers and its errors become files."""
        path = self.store.path(tenant, batch["id"])
        good, bad = await asyncio.to_thread(_split, path)
        counts = batch["request_counts"]
        counts["completed"] = good.count(b"\n")
        counts["failed"] = bad.count(b"\n")
        for name, content in (("output", good), ("error", bad)):
            if not content:
                continue
            about = self.store.add(
                tenant,
                f"{batch['id']}_{name}.jsonl",
                "batch_output",
                content,
            )
            batch[f"{name}_file_id"] = about["id"]
        self._mark(tenant, batch, status)
        path.unlink(missing_ok=True)

    def _refuse(
        self,
        tenant: str,
        batch: Batch,
        faults: list[Fault],
    ) -> None:
        """End a batch whose file cannot be read."""
        data = [
            {
                "code": one.code,
                "message": one.message,
                "param": None,
                "line": one.line,
            }
            for one in faults
        ]
        if data:
            self._fail(tenant, batch, data)
        else:
            self._fail(
                tenant,
                batch,
                "the file has no requests",
            )

    def _fail(
        self,
        tenant: str,
        batch: Batch,
        errors: str | list[dict[str, Any]],
    ) -> None:
        """End a batch with the errors of its lines, or with one."""
        if isinstance(errors, str):
            whole = {
                "code": "failed",
                "message": errors,
                "param": None,
                "line": None,
            }
            errors = [whole]
        batch["errors"] = {"object": "list", "data": errors}
        self._mark(tenant, batch, "failed")

    def _mark(
        self,
        tenant: str,
        batch: Batch,
        status: str,
    ) -> None:
        """Keep a batch in a new state."""
        batch["status"] = status
        batch[f"{status}_at"] = int(time())
        self.store.save(tenant, batch)


def _counted(counts: Counts) -> dict[str, int]:
    return {
        "completed": counts.completed,
        "failed": counts.failed,
    }


def _split(path: Path) -> tuple[bytes, bytes]:
    """Return the lines with answers, and those with errors."""
    good, bad = bytearray(), bytearray()
    if path.exists():
        for line in path.read_bytes().splitlines(keepends=True):
            if not line.endswith(b"\n"):
                continue  # a kill cut it
            status = json.loads(line)["response"]["status_code"]
            (good if status == GOOD else bad).extend(line)
    return bytes(good), bytes(bad)
