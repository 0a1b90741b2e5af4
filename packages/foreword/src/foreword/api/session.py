"""One engine with its requests: what `LLM`, `AsyncLLM` and speech share.

Any thread may call it. Rounds hold one lock; texts are read under another, meanwhile.
"""

import os
from collections.abc import Callable, Generator, Iterator, Sequence
from concurrent.futures import Future
from contextlib import contextmanager, nullcontext
from threading import Lock, RLock
from typing import TypeVar

from foreword.api.requests import PromptAndParams, Requests, has_texts
from foreword.chats.prompts import Prompt
from foreword.draft import Drafter
from foreword.engine import Engine
from foreword.engine.speculator import Speculator
from foreword.engine.speculator_cache import SpeculatorCache
from foreword.errors import InvalidRequest
from foreword.model import Tokenizer
from foreword.types import Completion, Delta, Request, SamplingParams, SpeechPrompt
from foreword.wanted import check_wanted

Result = TypeVar("Result")
Run = Generator[tuple[Prompt | SpeechPrompt, SamplingParams], Completion, Result]
"""Yields what is to be completed, is sent the completion, and returns a result."""


class Session:
    """Reads requests, queues them, and runs rounds until they have ended."""

    def __init__(
        self,
        engine: Engine,
        speculators: SpeculatorCache,
        requests: Requests,
        tokenizer: Tokenizer | None,
        method: str,
    ) -> None:
        """`method`: the default method, which completions name."""
        self.engine = engine
        self.target = engine.target
        self.tokenizer = tokenizer
        self.method = method
        self.closed = False
        self.speculators = speculators
        self._requests = requests
        self._lock = RLock()
        self._text_lock = Lock()
        """Held while texts are read: tokenizers are not thread-safe. Rounds go on."""
        self._running: dict[int, Request] = {}
        self._process = os.getpid()

    def beside(self, engine: Engine) -> "Session":
        """Return a session on another engine of the target, with the same reading."""
        return Session(
            engine, self.speculators, self._requests, self.tokenizer, self.method
        )

    # ---- requests

    def read(
        self, prompt: Prompt | SpeechPrompt, params: SamplingParams | None
    ) -> PromptAndParams:
        """Return a prompt and its parameters, read, for `build`. Holds up no round."""
        with self.reading(lock=has_texts(prompt, params)) as requests:
            return requests.read(prompt, params)

    def prepare(
        self, prompt: Prompt | SpeechPrompt, params: SamplingParams | None
    ) -> list[Request]:
        """Return `params.n` requests for a prompt, or raise InvalidRequest."""
        if not self.closed:
            self._requests.compile(params)
        prompt_and_params = self.read(prompt, params)
        with self.locked():  # images run the model
            requests = self.build(prompt_and_params)
        loading = self.load(requests[0].params)
        _drafter = loading and loading.result()
        with self.locked():
            for request in requests:
                request.speculator = self.speculator(request.params)
        return requests

    def build(self, prompt_and_params: PromptAndParams) -> list[Request]:
        """Return the requests of what `read` returned. The caller holds the lock."""
        return self._requests.build(*prompt_and_params)

    def load(self, params: SamplingParams) -> Future[Drafter] | None:
        """Return the drafter of such requests, being loaded; None once closed."""
        return None if self.closed else self.speculators.load(params)

    def compiling(self, params: SamplingParams) -> Future[object] | None:
        """Return the compiling grammar of such answers; None if free or closed."""
        if self.closed or not params.structured:
            return None
        return self._requests.compiling(params)

    def speculator(self, params: SamplingParams) -> Speculator:
        """Return the drafter, rule and budget of requests with these parameters."""
        return self.speculators.for_request(self.engine, params)

    def drafter(self, params: SamplingParams, *, fresh: bool = False) -> Drafter:
        """Return the drafter of such requests; it is loaded if need be. A `fresh` one
        remembers no text of other requests.
        """
        if fresh:
            return self.speculators.fresh(params)
        return self.speculators.load(params).result()

    # ---- rounds

    def begin(self, request: Request) -> None:
        """Queue a request from `prepare`."""
        with self.locked():
            self._running[request.id] = request
            self.engine.add(request, self.speculator(request.params))

    def advance(self) -> None:
        """Run one round of the engine; an error of one request goes to
        `Request.error` for its reader.

        Committed deltas are in `Request.unread`, even if this raises. Raises errors
        that belong to no request.
        """
        with self.locked():
            try:
                self.engine.step()
            except Exception:
                if not any(one.error for one in self._running.values()):
                    raise

    def stream(
        self, request: Request, on_read: Callable[[int, int], None] | None = None
    ) -> Iterator[Delta]:
        """Run a request and yield its deltas; closing the iterator aborts it.

        `on_read` gets the prompt tokens read and all of them, after each step before
        the first delta.
        """
        self.begin(request)
        try:
            yield from self.deltas(request, on_read)
        finally:
            self.forget(request)

    def deltas(
        self, request: Request, on_read: Callable[[int, int], None] | None = None
    ) -> Iterator[Delta]:
        """Yield the deltas of one request; others keep theirs in `Request.unread`."""
        while True:
            # Hold the lock for one round, never while the caller has the delta.
            with self.locked(closed=True):
                if not request.unread:
                    if request.error:
                        raise request.error
                    if request.finish_reason:
                        return
                    self.advance()
                delta = request.unread.popleft() if request.unread else None
            if delta:
                yield delta
            elif on_read and not request.produced:
                on_read(min(request.cached, request.prompt), request.prompt)

    def forget(self, request: Request) -> None:
        """Release a request; abort it if it still runs."""
        if self.forked:
            return
        with self._lock:
            if request.finish_reason is None:
                self.engine.abort(request)
            self._running.pop(request.id, None)

    def completions(self, requests: Sequence[Request]) -> Iterator[Completion]:
        """Run requests together; yield their completions in this order."""
        try:
            for request in requests:
                self.begin(request)
            for request in requests:
                yield self.completion(request, list(self.deltas(request)))
        finally:
            for request in requests:
                self.forget(request)

    def run(self, runs: Sequence[Run[Result]]) -> list[Result]:
        """Run all together and return results; each goes on after a completion."""
        results: dict[int, Result] = {}
        running: dict[int, Request] = {}

        def go_on(number: int, completion: Completion | None) -> None:
            run = runs[number]
            try:
                prompt, params = (
                    next(run) if completion is None else run.send(completion)
                )
            except StopIteration as end:
                results[number] = end.value
                return
            (running[number],) = self.prepare(prompt, params)
            self.begin(running[number])

        try:
            for number in range(len(runs)):
                go_on(number, None)
            while running:
                check_wanted()
                for number, request in list(running.items()):
                    if request.error:
                        raise request.error
                    if request.finish_reason:
                        del running[number]
                        self.forget(request)
                        go_on(number, self.completion(request, list(request.unread)))
                if running:
                    self.advance()
        finally:
            for request in running.values():
                self.forget(request)
        return [results[number] for number in range(len(runs))]

    def completion(self, request: Request, deltas: Sequence[Delta]) -> Completion:
        """Return the completion of a request, from all its deltas."""
        return completed(request, deltas, request.params.method or self.method)

    # ---- threads and processes

    @property
    def forked(self) -> bool:
        """Whether this process is a fork of the one that created the session."""
        return os.getpid() != self._process

    def check_process(self) -> None:
        """Raise InvalidRequest in a forked process, where locks may stay held."""
        if self.forked:
            raise InvalidRequest(
                "cannot use this LLM in a forked process: its threads stayed in the "
                "parent. Start the process with "
                "multiprocessing's 'spawn'"
            )

    @contextmanager
    def reading(self, *, lock: bool = True) -> Iterator[Requests]:
        """Hold what reads texts. Raises InvalidRequest when forked or closed."""
        self.check_process()
        with self._text_lock if lock else nullcontext():
            self._check_open()
            yield self._requests

    @contextmanager
    def locked(self, *, closed: bool = False) -> Iterator[None]:
        """Hold the lock of rounds. Raises InvalidRequest when forked, or closed."""
        self.check_process()
        with self._lock:
            if not closed:
                self._check_open()
            yield

    def close(self) -> None:
        """Abort all requests and free the models; readers get an error. Idempotent."""
        if self.forked:
            return
        with self._lock:
            for request in list(self._running.values()):
                request.error = InvalidRequest(
                    "cannot finish this request: the LLM was closed. Create another LLM"
                )
                self.engine.abort(request)
            if not self.closed:
                del self.engine, self.target, self.speculators, self._requests
            self.closed = True

    def _check_open(self) -> None:
        if self.closed:
            raise InvalidRequest(
                "cannot use this LLM: it was closed. Create another one"
            )


def completed(request: Request, deltas: Sequence[Delta], method: str) -> Completion:
    """Return the completion of a request drafted by `method`, from its deltas."""
    logprobs = [logprob for delta in deltas for logprob in delta.logprobs]
    return Completion(
        text="".join(delta.text for delta in deltas),
        tokens=request.tokens[request.prompt :],
        finish_reason=request.finish_reason or "abort",
        stop_reason=request.stop_reason,
        seed=request.seed,
        stats=request.stats,
        prompt_tokens=request.given,
        logprobs=None if request.params.logprobs is None else logprobs,
        method=method,
        undrafted=request.undrafted,
        rounds=[delta.round for delta in deltas if delta.round]
        if request.params.trace
        else None,
        pieces=tuple(piece for delta in deltas for piece in delta.pieces),
        origins=tuple(origin for delta in deltas for origin in delta.origins),
    )
