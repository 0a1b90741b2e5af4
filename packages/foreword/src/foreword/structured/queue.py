"""Compilations for many tenants: few at a time, in turns, each in a process that is
ended when it takes too long.
"""

import json
import os
import subprocess
import sys
import weakref
from collections.abc import Callable
from concurrent.futures import Future, InvalidStateError
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from threading import Lock, Thread, Timer
from typing import TYPE_CHECKING, NamedTuple

from foreword.errors import InvalidRequest, named
from foreword.structured.forms import Vocabulary

if TYPE_CHECKING:
    from xgrammar import CompiledGrammar

WORKERS = 2
"""Processes. Most that compile at a time; each takes 0.3 GB."""
LIMIT = 20.0
"""Seconds. Longest compilation; that of a usual schema takes less than one."""

Vocabularies = tuple[Vocabulary, Vocabulary]
"""The vocabulary of usual forms, and that of forms that are `tagged`."""


class Form(NamedTuple):
    """A constraint of answers."""

    tagged: bool
    name: str
    text: str


@dataclass(eq=False)
class Job:
    """A compilation that waits or runs, for one tenant."""

    tenant: str
    form: Form
    vocabularies: Callable[[], Vocabularies]
    """Called in the thread that compiles."""
    keep: "Callable[[CompiledGrammar], CompiledGrammar]"
    """Called with the result before it is handed on."""
    futures: "list[Future[CompiledGrammar]]" = field(default_factory=list)
    """Callers that wait for it."""
    worker: "Worker | None" = None
    """Set while its process works."""
    late: bool = False
    """Whether it took longer than `LIMIT`."""


class CompileQueue:
    """Compilations of all tenants. A tenant has one at a time, its shortest form first;
    tenants take turns.

    A compilation ends with its last caller, and after `LIMIT` seconds. Thread-safe;
    `submit` never waits.
    """

    def __init__(self) -> None:
        self._lock = Lock()
        self._waiting: list[Job] = []
        self._running: list[Job] = []
        self._turns: dict[str, int] = {}
        """Tenants that wait or run -> the turn in which they were last served."""
        self._turn = self._threads = 0
        self._idle: list[Worker] = []
        self._workers: set[Worker] = set()
        weakref.finalize(self, _end, self._workers)

    def submit(
        self,
        tenant: str,
        form: Form,
        vocabularies: Callable[[], Vocabularies],
        keep: "Callable[[CompiledGrammar], CompiledGrammar]",
    ) -> "Future[CompiledGrammar]":
        """Return the compiled form in a future; cancelling it ends the compilation."""
        future = Future["CompiledGrammar"]()
        with self._lock:
            jobs = (
                job
                for job in (*self._waiting, *self._running)
                if (job.tenant, job.form) == (tenant, form)
            )
            job = next(jobs, None)
            if job is None:
                job = Job(tenant, form, vocabularies, keep)
                self._waiting.append(job)
            job.futures.append(future)
            starts = self._threads < WORKERS
            self._threads += starts
        future.add_done_callback(partial(self._leave, job))
        if starts:
            Thread(target=self._work, name="foreword-grammars", daemon=True).start()
        return future

    def _leave(self, job: Job, future: "Future[CompiledGrammar]") -> None:
        """Drop a job whose last caller gave it up."""
        with self._lock:
            job.futures = [one for one in job.futures if one is not future]
            if job.futures or not future.cancelled():
                return
            if job in self._waiting:
                self._waiting.remove(job)
            elif job.worker is not None:
                job.worker.kill()

    def _stop(self, job: Job) -> None:
        """End the process of a job that takes too long."""
        with self._lock:
            if job.worker is not None:
                job.late = True
                job.worker.kill()

    def _next(self) -> Job | None:
        """Return the next job, or None if no tenant without a running one waits; then
        the calling thread ends.
        """
        with self._lock:
            busy = {job.tenant for job in self._running}
            open_ = [job for job in self._waiting if job.tenant not in busy]
            if not open_:
                self._threads -= 1
                return None
            tenants = {job.tenant for job in self._waiting} | busy
            self._turns = {
                tenant: turn
                for tenant, turn in self._turns.items()
                if tenant in tenants
            }
            job = min(
                open_,
                key=lambda job: (self._turns.get(job.tenant, 0), len(job.form.text)),
            )
            self._turn += 1
            self._turns[job.tenant] = self._turn
            self._waiting.remove(job)
            self._running.append(job)
            return job

    def _work(self) -> None:
        """Run jobs until none is left for this thread."""
        job = self._next()
        while job is not None:
            try:
                settle = partial(
                    Future.set_result, result=job.keep(self._compiled(job))
                )
            except Exception as error:  # noqa: BLE001 - the callers raise it
                settle = partial(Future.set_exception, exception=error)
            with self._lock:
                self._running.remove(job)  # no caller can join it now
                futures = list(job.futures)
            for future in futures:
                with suppress(InvalidStateError):  # given up meanwhile
                    settle(future)
            job = self._next()

    def _compiled(self, job: Job) -> "CompiledGrammar":
        """Return a form, compiled by a process, or raise InvalidRequest."""
        from xgrammar import CompiledGrammar

        vocabularies = job.vocabularies()
        worker = self._taken(vocabularies, job)
        timer = Timer(LIMIT, self._stop, [job])
        timer.daemon = True
        timer.start()
        try:
            accepted, text = worker.ask(job.form)
        except (OSError, EOFError) as error:
            reason = (
                f"compiling it takes more than {LIMIT:g} seconds"
                if job.late
                else "it cannot be compiled"
            )
            raise InvalidRequest(
                f"cannot follow this {job.form.name}: {reason}. Use one with fewer "
                "parts"
            ) from error
        finally:
            timer.cancel()
            self._give_back(job, worker)
        if not accepted:
            raise InvalidRequest(text)
        return CompiledGrammar.deserialize_json(
            text, vocabularies[job.form.tagged].info
        )

    def _taken(self, vocabularies: Vocabularies, job: Job) -> "Worker":
        """Return a process for a job, a new one if none is idle."""
        with self._lock:
            worker = self._idle.pop() if self._idle else None
        worker = worker or Worker(vocabularies)
        with self._lock:
            self._workers.add(worker)
            job.worker = worker
            if not job.futures:  # given up meanwhile
                worker.kill()
        return worker

    def _give_back(self, job: Job, worker: "Worker") -> None:
        with self._lock:
            job.worker = None
            if worker.alive:
                self._idle.append(worker)
                return
            self._workers.discard(worker)
        worker.end()


class Worker:
    """A process that compiles one form after another (worker.py)."""

    def __init__(self, vocabularies: Vocabularies) -> None:
        """Raises InvalidRequest if no process can be started."""
        command = [sys.executable, "-P", "-m", "foreword.structured.worker"]
        environment = os.environ | {
            "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)
        }
        try:
            self._process = subprocess.Popen(
                command,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                env=environment,
                # an interrupt at the terminal is for the other process
                start_new_session=True,
            )
        except OSError as error:
            raise InvalidRequest(
                f"cannot compile a grammar: no process can be started: {named(error)}"
            ) from error
        self._killed = False
        self._unsaid: list[object] = [[_spelt(one) for one in vocabularies]]

    def ask(self, form: Form) -> tuple[bool, str]:
        """Return (True, the grammar as JSON) or (False, why it is refused).

        Raises OSError or EOFError once killed.
        """
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        for value in (*self._unsaid, form):
            self._process.stdin.write(json.dumps(value).encode() + b"\n")
        self._unsaid = []
        self._process.stdin.flush()
        head = self._process.stdout.readline().split()
        content = self._process.stdout.read(int(head[1])) if head else b""
        if not head or len(content) < int(head[1]):
            raise EOFError("the process has ended")
        return head[0] == b"1", content.decode()

    @property
    def alive(self) -> bool:
        """Whether it can be asked."""
        return not self._killed and self._process.poll() is None

    def kill(self) -> None:
        """End the process; `ask` raises in the thread that waits."""
        self._killed = True
        self._process.kill()

    def end(self) -> None:
        """End the process and free what it held."""
        self.kill()
        self._process.wait()
        for pipe in (self._process.stdin, self._process.stdout):
            if pipe is not None:
                with suppress(OSError):
                    pipe.close()


def _spelt(vocabulary: Vocabulary) -> tuple[list[str], bool]:
    return [piece.decode("latin-1") for piece in vocabulary.pieces], vocabulary.spaced


def _end(workers: set[Worker]) -> None:
    for worker in list(workers):
        worker.end()
