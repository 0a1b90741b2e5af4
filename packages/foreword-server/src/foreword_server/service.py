"""Service behind the routes: one engine, admission, model names, life of an answer."""

import asyncio
import copy
import os
from collections.abc import AsyncIterator, Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import PurePath
from threading import Event
from time import perf_counter, time
from typing import TYPE_CHECKING, Any, TypeVar
from weakref import WeakValueDictionary

from foreword.api.async_llm import AsyncLLM
from foreword.api.job import Job
from foreword.api.limits import RequestLimits
from foreword.api.llm import LLM
from foreword.api.requests import Requests
from foreword.chats import image_reader
from foreword.draft import method as find_method
from foreword.errors import ForewordError, InvalidRequest, UnknownMethod, words
from foreword.model.executors.registry import NATIVE
from foreword.wanted import dropped_when
from foreword_server.answer import Answer, Call
from foreword_server.batches.store import Store
from foreword_server.errors import ApiError, PrivatePaths, stopping
from foreword_server.front import Front
from foreword_server.kept_prefixes import PrefixFile
from foreword_server.limits import Limits
from foreword_server.log import Log
from foreword_server.metrics import Metrics
from foreword_server.replicas.frames import NOTHING, Sent
from foreword_server.settings import Settings
from foreword_server.telemetry.asked import asked

if TYPE_CHECKING:
    from foreword_server.telemetry.traces import Traces


BUNDLED = "foreword-family"
"""Name of the bundled model."""


@dataclass(frozen=True, slots=True)
class Named:
    """What the name of a model stands for."""

    name: str
    """Name to report."""
    adapter: str | None = None
    method: str | None = None
    """Chosen by a suffix: "name:METHOD"."""


class Service(Front):
    """One model for all clients: an event loop, a thread of rounds, two of texts."""

    def __init__(
        self,
        llm: LLM,
        settings: Settings,
        *,
        bundled: bool = False,
        store: Store | None = None,
    ) -> None:
        """`store`: files and batches; None: the server keeps none."""
        super().__init__(
            settings,
            Log(as_json=settings.log_json),
            Limits(settings.queue, settings.concurrent, settings.rate),
            PrivatePaths(llm.target.name),
        )
        self.llm = llm
        self.engine = AsyncLLM(llm)
        self.name = settings.name or (
            BUNDLED if bundled else PurePath(llm.target.name).name
        )
        if self.name in llm.target.adapters:
            raise InvalidRequest(
                f"cannot serve an adapter as {self.name!r}: the model has this name. "
                "Choose another"
            )
        backend = llm.target.capability.backend
        if settings.adapters is not None and backend != NATIVE:
            raise InvalidRequest(
                f"cannot load adapters while {self.name} runs: it is on backend "
                f"{backend!r}, and only {NATIVE!r} takes more. Leave '--lora-folder' "
                "out"
            )
        self.metrics = Metrics(llm, self.name, self.limits)
        self.store = store
        self.created = int(time())
        self.cost = llm.target.cost
        """Measured now if it never was: later the engine's thread uses the model."""
        self.texts = Texts(self._requests)
        self.known = 0
        """Tokens of prompts that an earlier start has read."""
        self._prefixes: PrefixFile | None = None
        if settings.prefix_folder is not None:
            self._prefixes = PrefixFile(llm.target, settings.prefix_folder)
            self.known = self._prefixes.read()
        self.traces = _traces(self.name)

    def _requests(self) -> Requests:
        """Return a builder of requests for one thread; no files of this machine."""
        return Requests(
            self.llm.target,
            copy.deepcopy(self.llm.tokenizer),
            partial(image_reader, files=False),
            sanitize=self.settings.sanitize,
        )

    @property
    def tokenizer(self) -> Any:
        """A tokenizer that may turn tokens into text in any thread."""
        return self.texts.requests.tokenizer

    @property
    def context(self) -> int:
        """Tokens. Most of a prompt with its answer."""
        return self._limits.context

    def room(self, prompt: int) -> int:
        """Return an answer's most tokens after so many of its prompt; below 1, none."""
        return self._limits.room(prompt)

    @property
    def _limits(self) -> RequestLimits:
        return RequestLimits(self.llm.target, self.settings.context)

    def resolve(self, name: str | None) -> Named:
        """Return what the name of a model stands for: the model here or an adapter,
        with a method as suffix or without.

        Raises ApiError 404 for another model, unless the settings accept any.
        """
        if name is None or name == "default":
            return Named(self.name)
        if name in self.names:
            return self._named(name)
        model, _, method = name.rpartition(":")
        if model in self.names:
            _check_method(name, method)
            return replace(self._named(model), method=method)
        if self.settings.any_model:
            return Named(self.name)
        names = ", ".join(map(repr, self.names))
        raise ApiError(
            404,
            f"cannot use model {name!r}: this server has {names}. Name that "
            f"one, or {self.name}:METHOD, or none; '--any-model' accepts every name",
            param="model",
            code="model_not_found",
        )

    def _named(self, name: str) -> Named:
        return Named(name, adapter=None if name == self.name else name)

    @property
    def names(self) -> list[str]:
        """The names of the model and of its adapters."""
        return [self.name, *self.llm.target.adapters]

    @property
    def alive(self) -> bool:
        """Whether requests can be answered: rounds run, and all ranks of the target."""
        ranks_alive = getattr(self.llm.target.backend, "ranks_alive", True)
        return self.engine.alive and ranks_alive

    @property
    def failure(self) -> ForewordError | None:
        """Why no request can be answered any more; None while some can."""
        return self.engine.failure

    def can_draft(self, name: str) -> bool:
        """Whether requests may name this method: it needs no draft, or has one."""
        return self.llm.session.speculators.can_draft(name)

    @asynccontextmanager
    async def answer(
        self, call: Call, state: dict[str, Any], sent: Sent = NOTHING
    ) -> AsyncIterator[Answer]:
        """Generate the answer to a call; leaving early aborts it and frees its places
        at once.

        `sent`: what its client has; the answer repeats it, then goes on.
        Raises ApiError when the server is full or stops, and InvalidRequest for a call
        that cannot be served.
        """
        if self.draining:
            raise stopping()
        arrived = perf_counter()
        prompts = call.prompts if call.generates else []
        if sent.rounds:
            sent.check(len(prompts) * call.params.n, self.llm.target.vocab)
        with self.limits.place(state["tenant"], max(1, len(prompts) * call.params.n)):
            async with self.engine.submit(
                [(prompt, call.params) for prompt in prompts],
                committed=sent.committed if sent.rounds else (),
            ) as job:
                answer = Answer(
                    call,
                    job,
                    state["request_id"],
                    arrived,
                    self.engine.end,
                    self.llm,
                    hidden=self.paths.hidden,
                )
                if sent.state is not None:
                    answer.created = sent.state.created
                if call.scored is not None:
                    answer.scores = [
                        await self.engine.score(
                            prompt, call.scored, call.params.adapter
                        )
                        for prompt in call.prompts
                    ]
                try:
                    yield answer
                finally:
                    self._account(answer, job, state)

    def _account(self, answer: Answer, job: Job, state: dict[str, Any]) -> None:
        for choice in answer.choices:
            self.metrics.ended(answer, choice)
        if (span := state.get("span")) is not None:
            span.answered(answer)
        state["log"] = {
            "prompt_tokens": answer.prompt_tokens,
            "completion_tokens": answer.completion_tokens,
            "drafting": answer.call.method,
        }
        if self.settings.log_prompts:
            state["log"] |= {
                "prompt": [
                    self.tokenizer.decode(prompt) for prompt in answer.call.prompts
                ]
            }
            state["log"] |= {"answer": [choice.text for choice in answer.choices]}

    def _write_prefixes(self, file: PrefixFile) -> None:
        """Write the prompts that were read; a full disk loses them, and no answer."""
        try:
            self.log.event("prompts written", tokens=file.write())
        except (ForewordError, OSError) as error:
            self.log.warn("prompts not written", reason=words(error))

    async def close(self) -> None:
        """End the engine's thread and the threads of texts."""
        self.texts.close()
        await self.engine.close()
        if self._prefixes is not None:
            await asyncio.to_thread(self._write_prefixes, self._prefixes)
        if self.traces is not None:
            await asyncio.to_thread(self.traces.close)
        if self.store is not None:
            self.store.close()


def _check_method(model: str, method: str) -> None:
    """Raise ApiError 404 for the name of a model with a method that there is not."""
    try:
        find_method(method)
    except (UnknownMethod, InvalidRequest) as error:
        raise ApiError(
            404,
            f"cannot use model {model!r}: {error}",
            param="model",
            code="model_not_found",
        ) from None


def _traces(name: str) -> "Traces | None":
    """Return the traces of a server; None where the environment wants none."""
    if not asked(os.environ):
        return None
    # an extra, which other servers need not have
    from foreword_server.telemetry.traces import Traces

    return Traces(name)


LONG = 256 * 2**10
"""Bytes. Bodies from here on wait for each other, and no shorter one waits for them."""
T = TypeVar("T")


class Texts:
    """Two threads, one for short bodies and one for long ones; each tenant has one body
    in a thread at a time.

    So a long text holds up neither rounds nor the event loop, and the texts of other
    tenants by at most one of its own.
    """

    def __init__(self, requests: Callable[[], Requests]) -> None:
        """`requests` makes each thread's builder: tokenizers are not thread-safe."""
        self.requests = requests()
        self._long: Requests | None = None
        self._make = requests
        self._threads = [
            ThreadPoolExecutor(1, f"foreword-texts-{name}")
            for name in ("short", "long")
        ]
        self._turns: WeakValueDictionary[tuple[str, bool], asyncio.Lock] = (
            WeakValueDictionary()
        )

    async def run(self, tenant: str, size: int, function: Callable[[Requests], T]) -> T:
        """Call a function with a builder of requests. `size`: bytes of the body that it
        reads.

        Cancelling the caller drops the call if it has not begun; in one that has,
        `check_wanted` raises Abandoned.
        """
        left = Event()
        is_long = size >= LONG
        lock = self._turns.get((tenant, is_long))
        if lock is None:
            lock = self._turns[tenant, is_long] = asyncio.Lock()
        make = self._long_requests if is_long else lambda: self.requests
        async with lock:
            loop = asyncio.get_running_loop()
            try:
                return await loop.run_in_executor(
                    self._threads[is_long], partial(_call, function, make, left)
                )
            finally:
                left.set()

    def _long_requests(self) -> Requests:
        """Return the builder of the thread for long bodies, which few servers need."""
        if self._long is None:
            self._long = self._make()
        return self._long

    def close(self) -> None:
        """Drop what waits; what runs is not waited for, as it has no reader."""
        for thread in self._threads:
            thread.shutdown(wait=False, cancel_futures=True)


def _call(
    function: Callable[[Requests], T], make: Callable[[], Requests], left: Event
) -> T:
    with dropped_when(left.is_set):
        return function(make())
