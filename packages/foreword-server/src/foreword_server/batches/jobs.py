"""Batches of a server: one of each key at a time, beside its other requests."""

import asyncio
import json
import logging
from collections import Counter, defaultdict
from collections.abc import Coroutine, Iterable
from contextlib import AsyncExitStack, ExitStack, suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from time import time
from typing import IO, Any, TypeVar

from foreword.errors import ForewordError
from foreword_server.batches.inside import Inside
from foreword_server.batches.lines import Line, RequestFile
from foreword_server.batches.mirror import unavailable
from foreword_server.batches.results import GOOD, Response, ResultFile
from foreword_server.batches.run import run
from foreword_server.batches.store import (
    BATCH,
    UNFINISHED,
    Store,
)
from foreword_server.errors import ENDS_PROCESS, ApiError
from foreword_server.log import NAME

LATER = 1000
"""Priority of a request that names none: clients who wait come first."""
MOST_REQUESTS = 50_000
"""Requests of a batch (OpenAI's number)."""
LONGEST_REQUEST = 2**24
"""Bytes of one."""
MOST_FAULTS = 100
"""Lines that cannot be read, in the description of a batch."""
SWEEP_SECONDS = 600.0
"""Seconds between two looks for what has expired."""
Batch = dict[str, Any]
T = TypeVar("T")


@dataclass(slots=True)
class Batches:
    """The batches of a store, and the tasks that answer them."""

    store: Store
    app: Any
    """The routes that answer."""
    width: int
    """Requests of all batches at a time."""
    per_key: int | None = None
    """Answers of one key at a time. Its batch leaves a place."""
    _tasks: dict[str, asyncio.Task[None]] = field(default_factory=dict)
    """Batch id -> what answers it."""
    _first: defaultdict[str, asyncio.Lock] = field(
        default_factory=partial(defaultdict, asyncio.Lock)
    )
    """Tenant -> held by its batch that runs."""
    _places: asyncio.Semaphore = field(init=False)
    """One for each request that runs. As many requests of each key wait for one, in the
    order they came, so that each key has as many.
    """
    _alone: asyncio.Lock = field(default_factory=asyncio.Lock)
    """Held by a request that takes all places: two would wait for each other."""
    _sweeper: asyncio.Task[None] | None = None

    def __post_init__(self) -> None:
        self._places = asyncio.Semaphore(self.width)

    def start(self) -> None:
        """Go on with the batches that have not ended, then with new ones."""
        for tenant, batch in self.store.unfinished():
            self._begin(tenant, batch)
        self._sweeper = asyncio.create_task(self._sweep())

    async def stop(self) -> None:
        """Stop; the next start goes on."""
        tasks = [*self._tasks.values()]
        if self._sweeper is not None:
            tasks.append(self._sweeper)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def add(self, tenant: str, batch: Batch) -> None:
        """Keep a new batch and queue it.

        Raises ApiError for a key that has too many, or a full disk.
        """
        self.store.add_batch(tenant, batch)
        await self.store.kept(tenant, batch)
        self._begin(tenant, batch)

    async def cancel(self, tenant: str, id: str) -> Batch:
        """End a batch with the answers it has. Raises ApiError 400 if it has ended."""
        batch = self.store.about(tenant, id, BATCH)
        if batch["status"] not in UNFINISHED:
            raise ApiError(
                400, f"cannot cancel the batch {id!r}: it is {batch['status']}"
            )
        first = batch["status"] != "cancelling"
        if first:
            self._mark(tenant, batch, "cancelling")
        if (task := self._tasks.get(id)) is not None:
            if first:
                task.cancel()
            await asyncio.wait((task,))
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

    def _begin(self, tenant: str, batch: Batch) -> None:
        task = asyncio.create_task(self._run(tenant, batch))
        self._tasks[batch["id"]] = task

    async def _sweep(self) -> None:
        while True:
            try:
                self.store.delete_expired()
                await self.store.settled()
            except (OSError, ApiError) as error:
                _log("cannot delete what has expired", error)
            await asyncio.sleep(SWEEP_SECONDS)

    async def _run(self, tenant: str, batch: Batch) -> None:
        """Answer a batch in its turn, and keep its end, whatever that is."""
        errors: list[Batch] = []
        try:
            status = await self._ended(tenant, batch, errors)
            await _whole(self._finish(tenant, batch, status, errors))
        except Exception as error:  # noqa: BLE001 - the other batches must go on
            # not even its end could be kept; a restart goes on with it
            _log(f"batch {batch['id']} stopped", error)
        finally:
            del self._tasks[batch["id"]]

    async def _ended(self, tenant: str, batch: Batch, errors: list[Batch]) -> str:
        """Answer a batch until it ends; return its last status, and add its errors."""
        if batch["status"] == "cancelling":
            return "cancelled"
        try:
            left = batch["expires_at"] - time()
            async with asyncio.timeout(max(0.0, left)), self._first[tenant]:
                errors += await self._answer(tenant, batch)
        except TimeoutError:
            return "expired"
        except asyncio.CancelledError:
            if batch["status"] != "cancelling":
                raise  # the server stops
            return "cancelled"
        except ForewordError as error:
            errors.append(_error("failed", self.store.hidden(tenant, str(error))))
        except Exception as error:  # noqa: BLE001 - its end must be kept
            _log(f"batch {batch['id']} failed", error)
            reason = f"{type(error).__name__}, see the log of the server"
            errors.append(_error("failed", f"cannot answer the file: {reason}"))
        return "failed" if errors else "completed"

    async def _answer(self, tenant: str, batch: Batch) -> list[Batch]:
        """Answer the requests of a file; return why its lines cannot be read."""
        store = self.store
        store.check_room(tenant)
        file = batch["input_file_id"]
        path = await store.fetched(tenant, file)
        url = batch["endpoint"]
        reading = partial(RequestFile, path, url, MOST_REQUESTS, LONGEST_REQUEST)
        read = await _whole(asyncio.to_thread(reading))
        batch["request_counts"]["total"] = len(read.lines)
        if not read.faults and not read.lines:
            return [_error("failed", "the file has no requests")]
        if read.faults:
            faults = read.faults[:MOST_FAULTS]
            return [_error(one.code, one.message, one.line) for one in faults]
        self._mark(tenant, batch, "in_progress")
        path = store.path(tenant, batch["id"])
        path.touch(0o600)
        stored = await store.answers(tenant, batch["id"])
        with ResultFile(path) as results, Attempts(path.with_suffix(".sent")) as sent:
            resume = partial(results.resume, read.lines, errors=True)
            done = await _whole(asyncio.to_thread(resume))
            left = [line for line in read.lines if line.custom_id not in done]
            stack = ExitStack()
            if stored is not None:
                stack.enter_context(stored.storing(unavailable))
            try:
                await self._send(tenant, batch, read, left, results, sent)
            finally:
                closing = asyncio.to_thread(stack.close)
                await _whole(closing)
        self._mark(tenant, batch, "finalizing")
        return []

    async def _send(
        self,
        tenant: str,
        batch: Batch,
        read: RequestFile,
        lines: list[Line],
        results: ResultFile,
        sent: "Attempts",
    ) -> None:
        """Answer these lines; one that may have ended a process runs alone."""
        inside = Inside(self.app, tenant)

        async def answer(line: Line) -> Response:
            body = await asyncio.to_thread(read.body, line)
            async with self._places:
                sent.begin(line)
                return await inside.post(line.url, {"priority": LATER} | body)

        async def answer_alone(line: Line) -> Response:
            async with self._alone, AsyncExitStack() as held:
                for _ in range(self.width - 1):
                    await held.enter_async_context(self._places)
                return await answer(line)

        def write(line: Line, response: Response) -> None:
            results.write(line, response)
            batch["request_counts"] |= {
                "completed": results.counts.completed,
                "failed": results.counts.failed,
            }

        new, suspects, lost = sent.parted(lines)
        for line in lost:
            write(line, _ends_process(line))
        await run(suspects, answer_alone, write, 1)
        await run(new, answer, write, self._key_width)

    @property
    def _key_width(self) -> int:
        """Requests of one key at a time: a place is left for its clients."""
        per_key = self.width if self.per_key is None else self.per_key - 1
        return max(1, min(self.width, per_key))

    async def _finish(
        self,
        tenant: str,
        batch: Batch,
        status: str,
        errors: list[Batch],
    ) -> None:
        """End a batch: its answers and its errors become files."""
        store = self.store
        path = store.path(tenant, batch["id"])
        changes: Batch = {}
        seconds = batch["output_expires_after"]["seconds"]
        try:
            with store.scratch() as good, store.scratch() as bad:
                counts = await asyncio.to_thread(_split, path, good, bad)
                for name, file, count in zip(
                    ("output", "error"), (good, bad), counts, strict=True
                ):
                    if count:
                        title = f"{batch['id']}_{name}.jsonl"
                        about = store.add(tenant, title, "batch_output", file, seconds)
                        changes[f"{name}_file_id"] = about["id"]
            completed, failed = counts
            batch["request_counts"] |= {"completed": completed, "failed": failed}
        except ApiError as error:
            status = "failed"
            errors.append(_error(status, str(error)))
            path = path.with_suffix(".none")  # its answers stay where they are
        if errors:
            changes["errors"] = {"object": "list", "data": errors}
        self._mark(tenant, batch, status, **changes)
        await store.forget_answers(path)
        path.unlink(missing_ok=True)

    def _mark(
        self,
        tenant: str,
        batch: Batch,
        status: str,
        **changes: Any,
    ) -> None:
        """Keep a batch in a new state."""
        changes["status"] = status
        changes[f"{status}_at"] = int(time())
        self.store.save(tenant, batch, changes)


async def _whole(work: Coroutine[Any, Any, T]) -> T:
    """Do some work to its end, even where this task is cancelled meanwhile."""
    running = asyncio.create_task(work)
    try:
        return await asyncio.shield(running)
    except asyncio.CancelledError:
        await asyncio.gather(running, return_exceptions=True)
        raise


def _split(path: Path, good: IO[bytes], bad: IO[bytes]) -> tuple[int, int]:
    """Write the lines with answers to one file, those with errors to another; return
    how many there are of each.
    """
    counts = {True: 0, False: 0}
    with suppress(FileNotFoundError), path.open("rb") as written:
        for line in written:
            if line.endswith(b"\n"):  # else a kill cut it
                is_good = json.loads(line)["response"]["status_code"] == GOOD
                (good if is_good else bad).write(line)
                counts[is_good] += 1
    return counts[True], counts[False]


def _ends_process(line: Line) -> Response:
    error = ApiError(
        500,
        f"cannot answer this request: {MOST_ATTEMPTS} processes ended while they did. "
        "Change it, and send it in another batch",
        code=ENDS_PROCESS,
    )
    return Response(error.status, "", error.body(anthropic=line.url == "/v1/messages"))


def _error(code: str, message: str, line: int | None = None) -> Batch:
    return {"code": code, "message": message, "param": None, "line": line}


def _log(message: str, error: Exception) -> None:
    logging.getLogger(NAME).error("%s", message, exc_info=error)


MOST_ATTEMPTS = 2
"""Processes that ended while they answered a request, which then fails."""


class Attempts:
    """A file of the requests that were sent, beside the answers of a batch.

    It lies there after its process was killed; a process that stops deletes it.
    """

    def __init__(self, path: Path) -> None:
        """Read what processes that were killed have left, and append to it."""
        self._path, self._sent = path, set[int]()
        path.touch(0o600)
        starts = path.read_bytes().split()
        self._before = Counter(int(start) for start in starts if start.isdigit())
        self._file = path.open("ab", buffering=0)

    def __enter__(self) -> "Attempts":
        return self

    def __exit__(self, *_: object) -> None:
        self._file.close()
        self._path.unlink()

    def parted(self, lines: Iterable[Line]) -> tuple[list[Line], ...]:
        """Part requests without an answer by how many processes ended after they were
        sent: none, one, more.
        """
        parts = tuple[list[Line], ...]([] for _ in range(MOST_ATTEMPTS + 1))
        for line in lines:
            parts[min(self._before[line.start], MOST_ATTEMPTS)].append(line)
        return parts

    def begin(self, line: Line) -> None:
        """Say that a request is sent, once."""
        if line.start not in self._sent:
            self._sent.add(line.start)
            self._file.write(b"%d\n" % line.start)
