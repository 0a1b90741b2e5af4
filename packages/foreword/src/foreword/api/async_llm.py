"""An LLM for asyncio: a thread runs the rounds and wakes each loop once a round."""

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from functools import partial
from threading import Condition, Thread
from types import TracebackType
from typing import Any, cast, overload

from foreword.api.job import Committed, Event, Job, repeat, resolve, send
from foreword.api.llm import LLM
from foreword.api.requests import has_texts
from foreword.chats import Message, Tool
from foreword.chats.prompts import (
    Prompt,
    Rendered,
    check_one_answer,
    is_several,
    listed,
    per_prompt,
)
from foreword.errors import ForewordError, InvalidRequest, named
from foreword.model import Tokenizer
from foreword.speech.options import Audio, Transcript
from foreword.types import Completion, Delta, Request, SamplingParams, TokenLogprob

FAILED_ROUNDS = 5
"""Rounds in a row. After so many that fail, none is expected to succeed: the error of a
device stays until its process ends. A request that fails alone ends fewer, as client
libraries send it two or three times.
"""


class AsyncLLM:
    """One LLM for the requests of one or several event loops; all of them share its
    rounds.

    Leaving an iterator early, or cancelling the task that reads it, aborts the request.
    The LLM stays usable on its own, also from other threads at the same time; closing
    this object does not close it.

    Examples:
        >>> async with AsyncLLM(LLM()) as llm:
        ...     async for delta in llm.stream("The capital of France is"):
        ...         print(delta.text, end="")
    """

    def __init__(self, llm: LLM) -> None:
        self.llm = llm
        self._changed = Condition()
        self._tasks: list[Callable[[], None]] = []
        """Calls for the thread to make before its next round."""
        self._jobs: list[Job] = []
        """Used by the thread only."""
        self._named: dict[str, Job] = {}
        self._closed = False
        self._failed_rounds = 0
        """In a row."""
        self.failure: ForewordError | None = None
        """Why no request can run any more; None while some can."""
        self._thread: Thread | None = None

    async def generate(
        self,
        prompts: Prompt | Sequence[Prompt],
        params: SamplingParams | Sequence[SamplingParams] | None = None,
    ) -> list[Completion]:
        """Complete every prompt, as `LLM.generate` does; all are checked first."""
        deltas: dict[int, list[Delta]] = {}
        async with self.submit(per_prompt(listed(prompts), params)) as job:
            async for request, delta in job:
                deltas.setdefault(request.id, []).append(delta)
            return [
                self.llm.session.completion(one, deltas.get(one.id, []))
                for one in job.requests
            ]

    async def stream(
        self,
        prompt: Prompt,
        params: SamplingParams | None = None,
        *,
        id: str | None = None,
    ) -> AsyncIterator[Delta]:
        """Complete one prompt and yield a delta per round. `id`: a name for `abort`."""
        if params is not None and params.n > 1:
            raise InvalidRequest(
                f"cannot stream n={params.n} answers at once: a stream is one text. "
                "Use n=1"
            )
        if id is not None and id in self._named:
            raise InvalidRequest(
                f"cannot start a request named {id!r}: one of that name runs. Choose "
                "another name"
            )
        async with self.submit([(prompt, params)], id=id) as job:
            async for _, delta in job:
                yield delta

    @asynccontextmanager
    async def submit(
        self,
        prompts: Sequence[tuple[Prompt, SamplingParams | None]],
        *,
        id: str | None = None,
        committed: Committed = (),
    ) -> AsyncIterator[Job]:
        """Queue prompts together and yield their job, with `n` requests for each in
        order; abort it on leaving.

        `committed`: rounds of another engine, in order. Requests go on after them, and
        their deltas come first. Raises InvalidRequest, before any of them starts, if
        one cannot be served.
        """
        job = Job(asyncio.get_running_loop())
        if id is not None:
            self._named[id] = job
        try:
            prompts = [await self._read(prompt, params) for prompt, params in prompts]
            held = [await self._ready(params) for _, params in prompts]
            start = partial(self._start, job, prompts, committed)
            self._call_in_thread(start, starts=True)
            await job.started()
            del held  # the requests have it
            yield job
        finally:
            self._named.pop(id or "", None)
            self._call_in_thread(partial(self._abort, job))

    async def score(
        self, prompt: Prompt, top: int = 0, adapter: str | None = None
    ) -> list[TokenLogprob | None]:
        """Return each prompt token's log-probability, as `LLM.score` does."""
        prompt, _ = await self._read(prompt, None)
        loop = asyncio.get_running_loop()
        scored: asyncio.Future[list[TokenLogprob | None]] = loop.create_future()
        self._call_in_thread(
            partial(
                resolve, loop, scored, partial(self.llm.score, prompt, top, adapter)
            ),
            starts=True,
        )
        return await scored

    @overload
    async def chat(
        self,
        messages: Sequence[Message],
        params: SamplingParams | None = None,
        tools: Sequence[Tool] | None = None,
    ) -> Completion: ...

    @overload
    async def chat(
        self,
        messages: Sequence[Sequence[Message]],
        params: SamplingParams | Sequence[SamplingParams] | None = None,
        tools: Sequence[Tool] | None = None,
    ) -> list[Completion]: ...

    async def chat(
        self,
        messages: Sequence[Message] | Sequence[Sequence[Message]],
        params: SamplingParams | Sequence[SamplingParams] | None = None,
        tools: Sequence[Tool] | None = None,
    ) -> Completion | list[Completion]:
        """Answer a conversation, or several, as `LLM.chat` does."""
        if is_several(messages):
            prompts = [await self.render(one, tools) for one in messages]
            return await self.generate(prompts, params)
        check_one_answer(params)
        prompt = await self.render(cast("Sequence[Message]", messages), tools)
        return (await self.generate([prompt], params))[0]

    async def stream_chat(
        self,
        messages: Sequence[Message],
        params: SamplingParams | None = None,
        tools: Sequence[Tool] | None = None,
        *,
        id: str | None = None,
    ) -> AsyncIterator[Delta]:
        """Answer a conversation and yield a delta per round, as `stream` does."""
        prompt = await self.render(messages, tools)
        async for delta in self.stream(prompt, params, id=id):
            yield delta

    async def render(
        self, messages: Sequence[Message], tools: Sequence[Tool] | None = None
    ) -> Rendered:
        """Return the prompt of a chat, as `LLM.render` does."""
        return await asyncio.to_thread(self.llm.render, messages, tools)

    async def transcribe(
        self,
        audio: Audio | Sequence[Audio],
        params: SamplingParams | None = None,
        **options: Any,
    ) -> list[Transcript]:
        """Transcribe sounds, as `LLM.transcribe` does, with its options."""
        run = partial(self.llm.transcribe, audio, params, **options)
        return await asyncio.to_thread(run)

    @property
    def tokenizer(self) -> Tokenizer:
        """The target's tokenizer. Raises InvalidRequest where there is none."""
        return self.llm.tokenizer

    def abort(self, id: str) -> bool:
        """Abort the stream of that name after its committed tokens; False if none."""
        job = self._named.get(id)
        if job is not None:
            self._call_in_thread(partial(self._abort, job))
        return job is not None

    def end(self, request: Request) -> None:
        """End a request of a job before its next round; committed tokens stay."""
        self._call_in_thread(partial(self.llm.session.forget, request))

    @property
    def alive(self) -> bool:
        """Whether requests can run: not closed, and the thread has not ended."""
        return not self._closed and (self._thread is None or self._thread.is_alive())

    async def close(self) -> None:
        """Abort all requests and end the thread."""
        if self.llm.session.forked:
            return
        with self._changed:
            self._closed = True
            self._changed.notify()
        if self._thread is not None:
            await asyncio.to_thread(self._thread.join)

    async def __aenter__(self) -> "AsyncLLM":
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        at: TracebackType | None,
    ) -> None:
        await self.close()

    async def _read(
        self, prompt: Prompt, params: SamplingParams | None
    ) -> tuple[Prompt, SamplingParams | None]:
        """Tokenize the texts of a request in another thread, while rounds go on."""
        if not has_texts(prompt, params):
            return prompt, params
        read, params = await asyncio.to_thread(self.llm.session.read, prompt, params)
        return cast("list[int]", read), params

    async def _ready(self, params: SamplingParams | None) -> tuple[object, ...]:
        """Compile and load what a request needs, beside the rounds; hold the result."""
        if not isinstance(params, SamplingParams):
            return ()
        compiling = self.llm.session.compiling(params)
        grammar = compiling and await asyncio.wrap_future(compiling)
        loading = self.llm.session.load(params)
        return grammar, loading and await asyncio.wrap_future(loading)

    # ---- the thread

    def _call_in_thread(
        self, task: Callable[[], None], *, starts: bool = False
    ) -> None:
        """Have the thread call `task` before its next round."""
        if starts:
            self.llm.session.check_process()
        elif self.llm.session.forked:
            return
        with self._changed:
            if self._closed:
                if starts:
                    raise self.failure or InvalidRequest(
                        "cannot start a request: this AsyncLLM was closed. Create "
                        "another one"
                    )
                return
            self._tasks.append(task)
            if self._thread is None:
                self._thread = Thread(
                    target=self._run, name="foreword-rounds", daemon=True
                )
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
                self._abort_all(self.failure)
                return
            if self._jobs:
                self._round()

    def _start(
        self,
        job: Job,
        prompts: Sequence[tuple[Prompt, SamplingParams | None]],
        committed: Committed,
    ) -> None:
        if job.given_up:
            return
        try:
            job.requests = [
                request
                for prompt, params in prompts
                for request in self.llm.session.prepare(prompt, params)
            ]
            repeated = repeat(job.requests, committed)
            for request in job.requests:
                if request.finish_reason is None:
                    self.llm.session.begin(request)
        except Exception as error:  # noqa: BLE001 - the caller raises it
            self._send({job: [(None, error)]})
            self._abort(job)
            return
        self._jobs.append(job)
        self._send({job: [(None, None), *repeated]})

    def _abort(self, job: Job) -> None:
        job.given_up = True
        for request in job.requests:
            self.llm.session.forget(request)
        if job in self._jobs:
            self._jobs.remove(job)
            self._send({job: [(one, None) for one in job.requests]})

    def _abort_all(self, error: Exception | None) -> None:
        if error is not None:
            self._send({job: [(None, error)] for job in self._jobs})
        for job in list(self._jobs):
            self._abort(job)

    def _round(self) -> None:
        """Run one round, and send one message to every loop with events."""
        try:
            self.llm.session.advance()
        except Exception as error:  # noqa: BLE001 - of no single request, so every job gets it
            self._abort_all(error)
            self._count_failure(error)
            return
        self._failed_rounds = 0
        events = {job: job.unread() for job in self._jobs}
        self._jobs = [job for job in self._jobs if job.runs]
        self._send(events)

    def _count_failure(self, error: Exception) -> None:
        """Count a round that failed; end this object after too many in a row."""
        self._failed_rounds += 1
        if self._failed_rounds == FAILED_ROUNDS:
            with self._changed:
                self.failure = ForewordError(
                    f"cannot run requests any more: {FAILED_ROUNDS} rounds in a row "
                    f"failed, the last with {named(error)}. Start this program again"
                )
                self._closed = True

    def _send(self, events: dict[Job, list[Event]]) -> None:
        """Put events into the callers' queues; forget jobs without a caller."""
        for job in send(events):
            job.given_up = True
            for request in job.requests:
                self.llm.session.forget(request)
        self._jobs = [job for job in self._jobs if not job.given_up]
