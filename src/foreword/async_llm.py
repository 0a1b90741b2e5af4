"""An LLM for asyncio: one thread runs the rounds and wakes the event loop once a round, which never waits for one."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from collections.abc import Sequence as List
from dataclasses import dataclass, field
from functools import partial
from threading import Condition, Thread
from types import TracebackType

from foreword.errors import InvalidRequest
from foreword.llm import LLM
from foreword.prompts import Prompt, listed, per_prompt
from foreword.types import Completion, Delta, SamplingParams, Sequence

News = tuple[Sequence | None, Delta | BaseException | None]
"""What happened to a sequence: it wrote, it failed, or (None) it ended; no sequence stands for the whole job."""


@dataclass(slots=True, eq=False)
class _Job:
    """Sequences that one caller waits for, and where the caller hears of them."""

    loop: asyncio.AbstractEventLoop
    news: asyncio.Queue[News] = field(default_factory=asyncio.Queue)
    sequences: list[Sequence] = field(default_factory=list)
    given_up: bool = False


class AsyncLLM:
    """Serves requests of one or several event loops with one LLM; all of them share its rounds.

    >>> async with AsyncLLM(LLM()) as llm:
    ...     async for delta in llm.stream("The capital of France is"):
    ...         print(delta.text, end="")

    Leaving an iterator early, or cancelling the task that reads it, gives the request up. The LLM stays usable by
    itself, also from other threads at the same time, and is not closed with this object.
    """

    def __init__(self, llm: LLM) -> None:
        self.llm = llm
        self._changed = Condition()
        self._tasks: list[Callable[[], None]] = []
        """What the thread does before its next round."""
        self._jobs: list[_Job] = []
        """Touched by the thread alone."""
        self._named: dict[str, _Job] = {}
        self._closed = False
        self._thread: Thread | None = None

    async def generate(
        self, prompts: Prompt | List[Prompt], params: SamplingParams | List[SamplingParams] | None = None
    ) -> list[Completion]:
        """Complete every prompt, as `LLM.generate` does; all prompts are checked before any is begun."""
        asked = per_prompt(listed(prompts), params)
        job, deltas = _Job(asyncio.get_running_loop()), dict[int, list[Delta]]()
        self._do(partial(self._start, job, asked), starts=True)
        try:
            left: int | None = None
            while left != 0:
                sequence, what = await job.news.get()
                if isinstance(what, BaseException):
                    raise what
                if sequence is None:
                    left = len(job.sequences)
                elif what is None:
                    left = (left or 0) - 1
                else:
                    deltas.setdefault(sequence.id, []).append(what)
        finally:
            self._do(partial(self._give_up, job))
        return [self.llm.completion(one, deltas.get(one.id, [])) for one in job.sequences]

    async def stream(
        self, prompt: Prompt, params: SamplingParams | None = None, *, id: str | None = None
    ) -> AsyncIterator[Delta]:
        """Complete one prompt and yield what each round adds. `id` is a name by which `abort` finds it."""
        if params is not None and params.n > 1:
            raise InvalidRequest(f"cannot stream n={params.n} answers at once: a stream is one text. Use n=1")
        if id is not None and id in self._named:
            raise InvalidRequest(f"cannot start a request named {id!r}: one of that name runs. Choose another name")
        job = _Job(asyncio.get_running_loop())
        if id is not None:
            self._named[id] = job
        try:
            self._do(partial(self._start, job, [(prompt, params)]), starts=True)
            while True:
                sequence, what = await job.news.get()
                if isinstance(what, BaseException):
                    raise what
                if what is not None:
                    yield what
                elif sequence is not None:
                    return
        finally:
            self._named.pop(id or "", None)
            self._do(partial(self._give_up, job))

    async def chat(self, messages: List[dict[str, str]], params: SamplingParams | None = None) -> Completion:
        """Answer a conversation, in the model's own chat template."""
        if params is not None and params.n > 1:
            raise InvalidRequest(f"cannot answer a chat with n={params.n} completions: chat returns one. Use generate")
        prompt = await asyncio.to_thread(self.llm.render, messages)
        return (await self.generate([prompt], params))[0]

    def abort(self, id: str) -> bool:
        """Give up the stream of that name, which ends after what it has written. False where there is none."""
        job = self._named.get(id)
        if job is not None:
            self._do(partial(self._give_up, job))
        return job is not None

    async def close(self) -> None:
        """Give up every request, and end the thread."""
        if self.llm.forked:
            return
        with self._changed:
            self._closed = True
            self._changed.notify()
        if self._thread is not None:
            await asyncio.to_thread(self._thread.join)

    async def __aenter__(self) -> AsyncLLM:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None
    ) -> None:
        await self.close()

    # ---- the thread

    def _do(self, task: Callable[[], None], *, starts: bool = False) -> None:
        """Have the thread do something before its next round."""
        if starts:
            self.llm.check_process()
        elif self.llm.forked:
            return
        with self._changed:
            if self._closed:
                if starts:
                    raise InvalidRequest("cannot start a request: this AsyncLLM was closed. Make another one")
                return
            self._tasks.append(task)
            if self._thread is None:
                self._thread = Thread(target=self._run, name="foreword-rounds", daemon=True)
                self._thread.start()
            self._changed.notify()

    def _run(self) -> None:
        while True:
            with self._changed:
                while not (self._tasks or self._jobs or self._closed):
                    self._changed.wait()
                tasks, self._tasks = self._tasks, []
                closed = self._closed
            for task in tasks:
                task()
            if closed:
                for job in list(self._jobs):
                    self._give_up(job)
                return
            if self._jobs:
                self._round()

    def _start(self, job: _Job, asked: List[tuple[Prompt, SamplingParams | None]]) -> None:
        if job.given_up:
            return
        try:
            job.sequences = [one for prompt, params in asked for one in self.llm.prepare(prompt, params)]
            for sequence in job.sequences:
                self.llm.begin(sequence)
        except Exception as error:  # noqa: BLE001 - the caller raises it
            self._tell({job: [(None, error)]})
            self._give_up(job)
            return
        self._jobs.append(job)
        self._tell({job: [(None, None)]})

    def _give_up(self, job: _Job) -> None:
        job.given_up = True
        for sequence in job.sequences:
            self.llm.forget(sequence)
        if job in self._jobs:
            self._jobs.remove(job)
            self._tell({job: [(one, None) for one in job.sequences]})

    def _round(self) -> None:
        """One round, and one message to every loop that waits for something of it."""
        try:
            self.llm.advance()
        except Exception as error:  # noqa: BLE001 - nobody's own, so all that run get it
            self._tell({job: [(None, error)] for job in self._jobs})
            for job in list(self._jobs):
                self._give_up(job)
            return
        news: dict[_Job, list[News]] = {}
        for job in list(self._jobs):
            running = False
            for sequence in job.sequences:
                while sequence.unread:
                    news.setdefault(job, []).append((sequence, sequence.unread.popleft()))
                running |= sequence.finish_reason is None
                if sequence.error is not None:
                    news.setdefault(job, []).append((sequence, sequence.error))
            if not running:
                news.setdefault(job, []).extend((one, None) for one in job.sequences)
                self._jobs.remove(job)
        self._tell(news)

    def _tell(self, news: dict[_Job, list[News]]) -> None:
        """Put news where callers wait for them: one wake-up for each event loop."""
        by_loop: dict[asyncio.AbstractEventLoop, list[tuple[_Job, list[News]]]] = {}
        for job, several in news.items():
            by_loop.setdefault(job.loop, []).append((job, several))
        for loop, several in by_loop.items():
            try:
                loop.call_soon_threadsafe(_deliver, several)
            except RuntimeError:  # the loop has ended without closing its iterators: nobody waits any more
                for job, _ in several:
                    job.given_up = True
                    for sequence in job.sequences:
                        self.llm.forget(sequence)
                self._jobs = [job for job in self._jobs if not job.given_up]


def _deliver(several: list[tuple[_Job, list[News]]]) -> None:
    for job, news in several:
        for one in news:
            job.news.put_nowait(one)
