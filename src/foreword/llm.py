"""The text API: tokenizer and chat template around the engine."""

from __future__ import annotations

import os
from collections.abc import Iterator
from collections.abc import Sequence as List
from concurrent.futures import Future
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from pathlib import Path
from threading import Lock, RLock

from foreword import bundled
from foreword.budget import DraftBudget
from foreword.chats import Message, Options, Tool, image_reader
from foreword.draft import Drafter, default_method
from foreword.draft import method as find_method
from foreword.draft.ensemble.recipe import Sources
from foreword.draft.online.learner import Learning, OnlineLearner, teaching
from foreword.draft.online.trainer import Progress
from foreword.engine import Engine
from foreword.errors import InvalidRequest
from foreword.model import Tokenizer, load_tokenizer, need_tokenizer
from foreword.model.loading.given import Given, GivenTokenizer, check_given, opened
from foreword.model.scoring import score
from foreword.model.weights import save
from foreword.options import DraftingOptions, ModelOptions, SchedulingOptions
from foreword.prompts import Prompt, listed, per_prompt
from foreword.registry import DEFAULT_RULE, DEFAULT_WITH_DRAFT, MODEL
from foreword.requests import Request, Requests, completed, has_texts
from foreword.scheduler import Scheduler
from foreword.speculator import Speculator
from foreword.speculators import (
    Speculators,
    check_source,
    described,
    source_of,
)
from foreword.speech.transcribe import Transcribes
from foreword.types import (
    Completion,
    Delta,
    SamplingParams,
    Sequence,
    SpeechPrompt,
    TokenLogprob,
)


class LLM(Transcribes):
    """A target model, a drafter and the engine that runs them.

    >>> llm = LLM()                                              # the bundled models
    >>> llm.generate("The capital of France is", SamplingParams(temperature=0,
        max_tokens=16))[0].text

    target, draft: folder, hub id, GGUF file or model in memory, which stays unchanged.
        One that cannot be loaded is an
        error; only the bundled draft model, if nothing names it, is done without
            (`Completion.undrafted` says why).
    method: drafting method (`foreword methods` lists them); "none" decodes plainly. By
        default that of the draft: a
        head's own, a lookup without one, and for another tokenizer one that maps its
            tokens, unless it is "lm".
    rule: verification rule. "match" gives the same text as plain decoding with the same
        seed, the others the same
        distribution. Or a guarantee, "same-text" or "same-distribution", for the
            fastest rule that gives it.
    budget: policy for the number of draft tokens (docs/budgets.md). nodes: instead, a
        fixed number per round.
    learn: distil the draft model between rounds (docs/online.md): True, or Learning
        with its share of the time.
    dtype, device, backend, weights, kv, offload_folder, trust_remote_code: see
        `Model.load`.
    tokenizer: default, that of the target's folder; False for token ids alone
        (docs/targets/image-tokens.md).
    slots: sequences that run at a time.  chunk: prompt tokens read in one round.
    cache_tokens: most tokens of keys and values held, a quarter of the free memory by
        default (docs/kv-cache.md).

    Requests may set their own method, rule and budget (`SamplingParams`). If several
    methods need a source, `draft` maps method names to sources; the first is the
    default. Threads may share one LLM: their requests share rounds.
    """

    def __init__(
        self,
        target: Given | None = None,
        *,
        tokenizer: GivenTokenizer = None,
        draft: Sources = None,
        method: str | None = None,
        rule: str | None = None,
        budget: str | DraftBudget | None = None,
        nodes: int | None = None,
        dtype: str = "auto",
        device: str = "auto",
        backend: str | None = None,
        weights: str | None = None,
        kv: str | None = None,
        offload_folder: str | Path | None = None,
        slots: int = 8,
        chunk: int = 512,
        cache_tokens: int | None = None,
        learn: bool | Learning = False,
        trust_remote_code: bool = False,
    ) -> None:
        drafting = DraftingOptions(method=method, rule=rule, budget=budget, nodes=nodes)
        scheduling = SchedulingOptions(
            slots=slots, chunk=chunk, cache_tokens=cache_tokens
        )
        options = ModelOptions(
            dtype=dtype,
            device=device,
            backend=backend,
            weights=weights,
            kv=kv,
            offload_folder=offload_folder,
            trust_remote_code=trust_remote_code,
        )
        is_bundled = target is None
        target = bundled.target() if target is None else target
        check_given(target, draft, tokenizer, options)
        default = default_method(draft)
        if is_bundled and draft is None:
            default = DEFAULT_WITH_DRAFT
        drafting = replace(
            drafting,
            method=drafting.method or default,
            rule=drafting.rule or DEFAULT_RULE,
        )
        self.method = str(drafting.method)
        drafter = find_method(self.method)
        source = source_of(draft, self.method, drafter)
        if not is_bundled:
            check_source(source, self.method, drafter)
        settings = teaching(learn, drafter, self.method)
        if (
            drafter.about.takes == MODEL
            and isinstance(source, str | Path)
            and tokenizer is not False
        ):
            # fail now if its files are missing
            load_tokenizer(source, trust_remote_code=trust_remote_code)
        self.target, self._tokenizer = opened(target, tokenizer, options)
        self.target.cache_tokens = scheduling.cache_tokens
        self._speculators = Speculators(
            self.target, self._tokenizer, draft, drafting, bundled=is_bundled
        )
        self.engine = Engine(
            self.target,
            *self._speculators.usual(settings, anyhow=method is None),
            Scheduler(slots=scheduling.slots, chunk=scheduling.chunk),
        )
        self._requests = Requests(self.target, self._tokenizer, image_reader)
        self._lock = RLock()
        self._text_lock = Lock()
        """Held while texts are read, as tokenizers are not thread-safe.

        Rounds go on meanwhile.
        """
        self._running: dict[int, Sequence] = {}
        self._process, self._closed = os.getpid(), False

    def generate(
        self,
        prompts: Prompt | List[Prompt],
        params: SamplingParams | List[SamplingParams] | None = None,
    ) -> list[Completion]:
        """Complete all prompts together and return the completions in the order of the
        prompts.

        `params` are for all prompts, or a list with one for each. If `params.n` > 1,
        the answers to one prompt are adjacent, with the seeds seed, seed + 1, …. Raises
        InvalidRequest before any work starts if a prompt or a parameter cannot be
        served.
        """
        sequences = [
            one
            for prompt, own in per_prompt(listed(prompts), params)
            for one in self.prepare(prompt, own)
        ]
        try:
            for sequence in sequences:
                self.begin(sequence)
            deltas = [list(self._deltas(sequence)) for sequence in sequences]
        finally:
            for sequence in sequences:
                self.forget(sequence)
        return [
            self.completion(*answered)
            for answered in zip(sequences, deltas, strict=True)
        ]

    def stream(
        self, prompt: Prompt, params: SamplingParams | None = None
    ) -> Iterator[Delta]:
        """Complete one prompt and yield a delta per round.

        Closing the iterator aborts the request.
        """
        sequence, *more = self.prepare(prompt, params)
        if more:
            raise InvalidRequest(
                f"cannot stream n={1 + len(more)} answers at once: a stream is one "
                "text. Use n=1"
            )
        return self._stream(sequence)

    def chat(
        self, messages: List[Message], params: SamplingParams | None = None
    ) -> Completion:
        """Answer a conversation, formatted with the model's chat template."""
        if params is not None and params.n > 1:
            raise InvalidRequest(
                f"cannot answer a chat with n={params.n} completions: chat returns "
                "one. Use generate(render(messages))"
            )
        return self.generate([self.render(messages)], params)[0]

    def close(self) -> None:
        """Abort all requests and free the models; readers get an error.

        May be called twice.
        """
        if self.forked:
            return
        with self._lock:
            for sequence in list(self._running.values()):
                sequence.error = InvalidRequest(
                    "cannot finish this request: the LLM was closed. Create another LLM"
                )
                self.engine.abort(sequence)
            if not self._closed:
                del self.engine, self.target, self._speculators, self._requests
            self._closed = True

    def __enter__(self) -> LLM:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def __repr__(self) -> str:
        return "<LLM, closed>" if self._closed else described(self.engine, self.method)

    def save_draft(self, folder: str | Path) -> None:
        """Save the trained draft model as a checkpoint for `draft=`; the folder appears
        complete or not at all.

        Raises InvalidRequest if there is no trainable draft model, or if `folder`
        exists.
        """
        model = self.engine.drafter.trainable
        if model is None:
            raise InvalidRequest(
                f"cannot save a draft model: the method {self.method} has none that "
                "learns"
            )
        with self._locked():
            save(model, Path(folder), self._tokenizer)

    @property
    def tokenizer(self) -> Tokenizer:
        """The target's tokenizer. Raises InvalidRequest where there is none."""
        return need_tokenizer(self._tokenizer)

    @property
    def progress(self) -> Progress | None:
        """Progress of online learning; None without it."""
        return (
            self.engine.drafter.progress
            if isinstance(self.engine.drafter, OnlineLearner)
            else None
        )

    def render(
        self,
        messages: List[Message],
        tools: List[Tool] | None = None,
        template_options: Options | None = None,
    ) -> list[int]:
        """Return the prompt token ids of a chat, tools included.

        Raises InvalidRequest if it cannot be rendered.
        """
        with self._reading() as requests:
            return requests.render(messages, tools, template_options)

    def score(self, prompt: Prompt, top: int = 0) -> list[TokenLogprob | None]:
        """Return the log-probability (nats) of each prompt token under the raw target;
        None for the first.

        `top`: likeliest tokens listed with each. Raises InvalidRequest for a prompt
        that cannot be served.
        """
        request = self.read(prompt, SamplingParams(max_tokens=1, logprobs=top))
        with self._locked():
            return score(self.target, self._requests.sequences(*request)[0])

    def speculator(self, params: SamplingParams) -> Speculator:
        """Return the drafter, rule and budget of requests with these parameters."""
        return self._speculators.for_request(self.engine, params)

    # ---- single sequences: for callers that run rounds themselves

    def _stream(self, sequence: Sequence) -> Iterator[Delta]:
        self.begin(sequence)
        try:
            yield from self._deltas(sequence)
        finally:
            self.forget(sequence)

    def begin(self, sequence: Sequence) -> None:
        """Queue a sequence from `prepare`."""
        with self._locked():
            self._running[sequence.id] = sequence
            self.engine.add(sequence, self.speculator(sequence.params))

    def _deltas(self, sequence: Sequence) -> Iterator[Delta]:
        """Yield the deltas of one sequence; deltas of the others stay in
        `Sequence.unread` for their readers.
        """
        while True:
            # hold the lock for one round, never while the caller has the delta
            with self._locked(closed=True):
                if not sequence.unread:
                    if sequence.error:
                        raise sequence.error
                    if sequence.finish_reason:
                        return
                    self.advance()
                delta = sequence.unread.popleft() if sequence.unread else None
            if delta:
                yield delta

    def advance(self) -> None:
        """Run one round of the engine; an error of one sequence goes to
        `Sequence.error` for its reader.

        Committed deltas are in `Sequence.unread`, even if this raises. Raises errors
        that belong to no sequence.
        """
        with self._locked():
            try:
                self.engine.step()
            except Exception:
                if not any(one.error for one in self._running.values()):
                    raise

    def forget(self, sequence: Sequence) -> None:
        """Release a sequence; abort it if it still runs."""
        if self.forked:
            return
        with self._lock:
            if sequence.finish_reason is None:
                self.engine.abort(sequence)
            self._running.pop(sequence.id, None)

    def prepare(
        self, prompt: Prompt | SpeechPrompt, params: SamplingParams | None
    ) -> list[Sequence]:
        """Return `params.n` sequences for a prompt.

        Raises InvalidRequest if the request cannot be served.
        """
        if not self._closed:
            self._requests.compile(params)
        request = self.read(prompt, params)
        with self._locked():  # images run the model
            sequences = self._requests.sequences(*request)
        loading = self.load(sequences[0].params)
        _drafter = loading and loading.result()
        with self._locked():
            for sequence in sequences:
                sequence.speculator = self.speculator(sequence.params)
        return sequences

    def read(
        self, prompt: Prompt | SpeechPrompt, params: SamplingParams | None
    ) -> Request:
        """Return a request with its texts as token ids, for `prepare`.

        Holds up no round.
        """
        with self._reading(lock=has_texts(prompt, params)) as requests:
            return requests.read(prompt, params)

    def load(self, params: SamplingParams) -> Future[Drafter] | None:
        """Return the drafter of such requests, which is loaded beside the rounds if
        need be; None once closed.
        """
        return None if self._closed else self._speculators.load(params)

    def compiling(self, params: SamplingParams) -> Future[object] | None:
        """Return what such answers must follow, compiled beside the rounds; None if
        they are free, or once closed.
        """
        return (
            None
            if self._closed or not params.structured
            else self._requests.compiling(params)
        )

    @property
    def forked(self) -> bool:
        """Whether this process is a fork of the one that created the LLM."""
        return os.getpid() != self._process

    def check_process(self) -> None:
        """Raise InvalidRequest in a forked process, where a lock may be held by a
        thread that does not exist.
        """
        if self.forked:
            raise InvalidRequest(
                "cannot use this LLM in a forked process: its threads stayed in the "
                "parent. Start the process with "
                "multiprocessing's 'spawn'"
            )

    @contextmanager
    def _reading(self, *, lock: bool = True) -> Iterator[Requests]:
        """Hold what reads texts.

        Raises InvalidRequest in a forked process, or after `close`.
        """
        self.check_process()
        with self._text_lock if lock else nullcontext():
            self._check_open()
            yield self._requests

    def _check_open(self) -> None:
        if self._closed:
            raise InvalidRequest(
                "cannot use this LLM: it was closed. Create another one"
            )

    @contextmanager
    def _locked(self, *, closed: bool = False) -> Iterator[None]:
        """Hold the lock.

        Raises InvalidRequest in a forked process, or after `close` unless `closed` is
        set.
        """
        self.check_process()
        with self._lock:
            if not closed:
                self._check_open()
            yield

    def completion(self, sequence: Sequence, deltas: List[Delta]) -> Completion:
        """Return the completion of a sequence, from all its deltas."""
        return completed(sequence, deltas, sequence.params.method or self.method)
