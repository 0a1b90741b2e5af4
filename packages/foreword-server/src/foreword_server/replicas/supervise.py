"""Supervisor of a server's replicas: starts them, and restarts one that has ended."""

import asyncio
import os
import shutil
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from foreword.errors import ForewordError
from foreword_server.log import Log
from foreword_server.replicas.places import Place
from foreword_server.replicas.pool import LONGEST_PAUSE, Pool, Replica, read_from
from foreword_server.replicas.process import Process, Start

LONGEST_PATH = 72
"""Bytes of the temporary folder's path. Linux takes 107 for a socket, macOS 103."""
PROBE_SECONDS = 5.0
"""Seconds between two looks whether a replica answers; an answer takes less."""
SILENT = 3
"""Looks in a row without an answer, after which a replica is killed."""


def _socket_folder() -> Path:
    """Make the folder of the sockets: in /tmp where the usual one has a long path."""
    folder = tempfile.gettempdir()
    if len(os.fsencode(folder)) > LONGEST_PATH:
        folder = "/tmp"
    return Path(tempfile.mkdtemp(prefix="foreword-", dir=folder))


class Supervisor:
    """The processes of one model."""

    def __init__(
        self, start: Start, places: Sequence[Place], seconds: float, log: Log
    ) -> None:
        """`seconds`: most until a replica is ready."""
        self._folder = _socket_folder()
        self._processes = [
            Process(start, place, self._folder / f"{number}.sock", seconds)
            for number, place in enumerate(places)
        ]
        self.pool = Pool(
            [
                Replica(str(number), process.ask)
                for number, process in enumerate(self._processes)
            ],
            seconds,
        )
        self._log = log
        self._tasks: list[asyncio.Task[None]] = []
        self.restarts = 0
        """Replicas that were started again."""

    async def start(self) -> dict[str, Any]:
        """Start all; return what the first one says of itself.

        Raises InvalidRequest for a model that cannot be served, NotReady for a replica
        that does not become ready; then none runs.
        """
        starts = [
            asyncio.create_task(self._started(replica, process))
            for replica, process in self._pairs
        ]
        try:
            abouts = await asyncio.gather(*starts)
        except BaseException:
            for task in starts:
                task.cancel()
            await asyncio.gather(*starts, return_exceptions=True)
            await self._end()
            raise
        self._tasks = [
            asyncio.create_task(self._keep(replica, process))
            for replica, process in self._pairs
        ]
        return abouts[0]

    async def stop(self) -> None:
        """End all; do nothing the second time."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self._end()

    async def memory(self) -> int:
        """Return the bytes that the processes take, shared pages counted once. The
        system counts the pages of a large process for a while.
        """

        def total() -> int:
            return sum(one.memory for one in self._processes)

        return await asyncio.to_thread(total)

    @property
    def _pairs(self) -> list[tuple[Replica, Process]]:
        return [*zip(self.pool.replicas, self._processes, strict=True)]

    async def _end(self) -> None:
        stops = [one.stop() for one in self._processes]
        await asyncio.gather(*stops)
        shutil.rmtree(self._folder, ignore_errors=True)

    async def _started(self, replica: Replica, process: Process) -> dict[str, Any]:
        about = await process.start()
        if about["cache_tokens"] is not None:
            replica.prefixes.fit(about["cache_tokens"])
        self.pool.mark(replica, ready=True)
        self._log.event(
            "replica ready", replica=replica.name, pid=process.pid, place=process.place
        )
        return about

    async def _keep(self, replica: Replica, process: Process) -> None:
        """Start a replica again whenever it has ended, until the server stops."""
        while not self.pool.draining:
            await self._end_of(replica, process)
            self.pool.mark(replica, ready=False)
            self._log.warn("replica ended", replica=replica.name)
            if not self.pool.draining:
                await self._start_again(replica, process)
                self.restarts += 1

    async def _end_of(self, replica: Replica, process: Process) -> None:
        """Return when a replica has ended; kill one that does not answer."""
        watched = asyncio.create_task(process.ended())
        silent = 0
        while True:
            health = read_from(replica, "/health", PROBE_SECONDS)
            look = asyncio.create_task(health)
            done, _ = await asyncio.wait((watched,), timeout=PROBE_SECONDS)
            if done:
                look.cancel()
                return
            silent = silent + 1 if await look is None else 0
            if silent == SILENT:
                self._log.warn("replica silent", replica=replica.name)
                await process.kill()

    async def _start_again(self, replica: Replica, process: Process) -> None:
        """Start a replica, after a pause that doubles each time it fails."""
        pause = 1.0
        while True:
            try:
                await self._started(replica, process)
            except (ForewordError, OSError) as error:
                self._log.warn(
                    "replica failed",
                    replica=replica.name,
                    error=str(error),
                    again_in=pause,
                )
            else:
                return
            await asyncio.sleep(pause)
            pause = min(2 * pause, LONGEST_PAUSE)
