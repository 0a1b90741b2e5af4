"""Starts, watches and ends the processes of the other ranks."""

import os
import pickle
import shutil
import subprocess
import sys
import tempfile
import threading
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import NoReturn

import torch
import torch.distributed as dist
from torch._C._distributed_c10d import FileStore, ProcessGroup

from foreword.errors import ModelError, named, words
from foreword.model.parallel.network import grouped, joined
from foreword.options import ModelOptions

POLL = 0.05
"""Seconds between two looks at the ranks that have not joined yet."""
GRACE = 5.0
"""Seconds. An operation fails some time before the process that broke it off is seen to
end; and a rank that is asked to end may take so long.
"""
SETTINGS = {"TRANSFORMERS_VERBOSITY": "error", "HF_HUB_DISABLE_PROGRESS_BARS": "1"}
"""Environment of the other ranks: rank 0 has said it all."""


@dataclass(frozen=True, slots=True)
class Order:
    """What a rank loads, and how it finds the others."""

    source: str | Path
    options: ModelOptions
    device: str
    """Type of the ranks' devices."""

    @property
    def count(self) -> int:
        """Ranks, with rank 0."""
        return self.options.tensor_parallel


@dataclass(frozen=True, slots=True)
class Seat:
    """The place of one rank."""

    order: Order
    rank: int
    folder: Path
    """Where the ranks find each other; only their user may enter it."""

    @property
    def store(self) -> FileStore:
        """The ranks' addresses. It is a file: anybody may connect to a port."""
        return FileStore(str(self.folder / "store"), self.order.count)


class Ranks:
    """The processes of ranks 1 and up. Each ends when this process ends, however."""

    def __init__(self, order: Order) -> None:
        self.device = order.device
        self._order = order
        self._why: str | None = None
        """Why the ranks are of no use any more."""
        self._said = ""
        """Last line of the rank that ended first."""
        self._ended = threading.Event()
        self._closing = False
        self._owner = os.getpid()
        self.folder = Path(tempfile.mkdtemp(prefix="foreword-ranks-"))
        """Removed with the ranks."""
        self._store = Seat(order, 0, self.folder).store
        numbers = range(1, order.count)
        self.processes = [self._started(rank) for rank in numbers]
        for rank, process in zip(numbers, self.processes, strict=True):
            watch = threading.Thread(
                target=self._watch, args=(rank, process), daemon=True
            )
            watch.start()

    def join(self) -> ProcessGroup:
        """Wait for the ranks and form the group with them; return the group of
        messages. Raises ModelError where a rank ends instead.
        """
        keys = [joined(rank) for rank in range(1, self._order.count)]
        while not self._store.check(keys):
            self._ended.wait(POLL)
            self.check()
        return grouped(self._store, self.device, 0, self._order.count)

    @property
    def alive(self) -> bool:
        """Whether none has ended."""
        return self._why is None

    def check(self) -> None:
        """Raise ModelError where a rank has ended."""
        if self._why is not None:
            raise self._error()

    def fail(self, error: BaseException) -> NoReturn:
        """End all ranks after an operation has failed; raise ModelError, or the error
        of the operation where no rank is to blame.
        """
        lost = isinstance(error, Exception) and self._ended.wait(GRACE)
        self._why = self._why or f"rank 0 failed: {named(error)}"
        self.end()
        if lost and self._said != words(error):
            raise self._error() from error
        raise error

    def end(self) -> None:
        """End the processes and leave the group. May be called twice."""
        if os.getpid() != self._owner or self._closing:
            return
        self._closing = True
        self._why = self._why or "the model was closed"
        for process in self.processes:
            if process.stdin is not None:
                with suppress(OSError):
                    process.stdin.close()  # what it takes as the end of this process
        for process in self.processes:
            try:
                process.wait(GRACE)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
        if dist.is_initialized():
            dist.destroy_process_group()
        shutil.rmtree(self.folder, ignore_errors=True)

    def _error(self) -> ModelError:
        return ModelError(
            f"cannot run {self._order.source} on {self._order.count} ranks: "
            f"{self._why}. Load the model again"
        )

    def _started(self, rank: int) -> subprocess.Popen[bytes]:
        command = [sys.executable, "-P", "-m", "foreword.model.parallel.rank"]
        paths = os.pathsep.join(path for path in sys.path if path)
        variables = {"PYTHONPATH": paths, "LOCAL_RANK": str(rank), **SETTINGS}
        if self.device == "cpu":
            threads = torch.get_num_threads() // self._order.count
            variables["OMP_NUM_THREADS"] = str(max(1, threads))
        process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env=os.environ | variables,
            start_new_session=True,  # an interrupt at the terminal is for rank 0
        )
        assert process.stdin is not None
        seat = Seat(self._order, rank, self.folder)
        with suppress(BrokenPipeError):  # its end is seen by the watch
            process.stdin.write(pickle.dumps(seat))
            process.stdin.flush()
        return process

    def _watch(self, rank: int, process: subprocess.Popen[bytes]) -> None:
        """Note the end of a rank, with its last line."""
        assert process.stdout is not None
        with process.stdout as output:
            lines = output.read().decode(errors="replace").splitlines()
        code = process.wait()
        if self._closing or self._why is not None:
            return
        self._said = lines[-1] if lines else ""
        how = f"killed by signal {-code}" if code < 0 else f"exit code {code}"
        self._why = f"rank {rank} ended: {self._said or how}"
        self._ended.set()
        group = dist.group.WORLD
        if self.device == "cuda" and group is not None:
            group.abort()  # NCCL waits for a lost rank without end
