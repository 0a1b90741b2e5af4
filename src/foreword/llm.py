"""Text in, text out: tokenizer, chat template, and the engine behind them.

Knows text; knows nothing about models' insides, rules or methods by name.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from collections.abc import Sequence as List
from contextlib import contextmanager
from pathlib import Path
from threading import RLock
from types import TracebackType

from foreword import family
from foreword.draft import MODEL, WITH_DRAFT, usual
from foreword.draft import method as find_method
from foreword.draft.course import Progress
from foreword.draft.learning import Learner, Learning, teaching
from foreword.draft.recipe import Sources, shipped
from foreword.engine import Engine
from foreword.errors import InvalidRequest
from foreword.model import Tokenizer, load_tokenizer
from foreword.model.given import Given, check_given, opened
from foreword.model.weights import save
from foreword.params import NODES, whole
from foreword.prompts import Prompt, listed, per_prompt
from foreword.requests import Message, Requests
from foreword.scheduler import Scheduler
from foreword.speculators import Speculators, source_of
from foreword.types import Completion, Delta, SamplingParams, Sequence, TokenLogprob
from foreword.verify import rule as find_rule
from foreword.width import Width, policy


class LLM:
    """A target model, a drafter and the loop that joins them.

    >>> llm = LLM()                                              # the small family that ships with Foreword
    >>> llm.generate("The capital of France is", SamplingParams(temperature=0, max_tokens=16))[0].text

    target, draft: folder, hub id or model in memory; a draft in memory is ours to change, a target is not. With
        no draft the prompt is searched for guesses; `method` names another way (`foreword methods` lists them), "none"
        decodes plainly. A draft of another tokenizer is translated, unless `method` says "lm"; a head says what it is.
    rule: how guesses are judged. "match" gives the same text as plain decoding with the same seed; the others the same
        distribution. Or what is to be kept, "same-text" or "same-distribution", by the rule that keeps most guesses.
    width: what decides how much is guessed; docs/widths.md has the names.  nodes: instead, so many in every round.
    learn: keep distilling the draft model from what the target says, between rounds (docs/online.md): True, or Learning
        with its share of the time. No text depends on it.
    dtype, device, way, trust_remote_code: see `Model.load`.  tokenizer: if not that of the target's folder.  slots:
        sequences that run at a time.  chunk: prompt tokens read in one round.

    Requests may choose a method, a rule and a width of their own (`SamplingParams`); where several methods draft with
    something, `draft` gives it by the method's name: {"lm": folder, …}. The first is the usual one.

    Threads may share one LLM: their requests run together, round by round, and one thread at a time runs a round. An
    error of one request, such as a processor that raises, ends that request alone, and whoever reads it gets the error.
    """

    def __init__(
        self,
        target: Given | None = None,
        *,
        tokenizer: Tokenizer | str | Path | None = None,
        draft: Sources = None,
        method: str | None = None,
        rule: str = "match",
        width: str | Width | None = None,
        nodes: int | None = None,
        dtype: str = "auto",
        device: str = "auto",
        way: str | None = None,
        slots: int = 8,
        chunk: int = 512,
        learn: bool | Learning = False,
        trust_remote_code: bool = False,
    ) -> None:
        scheduler, _ = Scheduler(slots=slots, chunk=chunk), find_rule(rule)  # a wrong name is refused at once
        decides = policy(width, whole(0, NODES, optional=True)("nodes", nodes))
        bundled = target is None
        if target is None:
            target = family.target()
            named = WITH_DRAFT if method is None else method
            draft = shipped(find_method(named), named) if draft is None else draft
        how = dict(dtype=dtype, device=device, way=way, trust_remote_code=trust_remote_code)
        check_given(target, draft, tokenizer, **how)
        self.method = _likely(draft) if method is None else method
        drafter = find_method(self.method)
        for name in draft if isinstance(draft, Mapping) else ():
            find_method(name)
        own = source_of(draft, self.method, drafter)
        if drafter.needs and own is None and not bundled:
            raise InvalidRequest(f"the method {self.method} needs {drafter.takes}: give draft='folder or hub id'")
        settings = teaching(learn, drafter, self.method)
        if drafter.takes == MODEL and isinstance(own, str | Path):
            load_tokenizer(own, trust_remote_code=trust_remote_code)  # what is missing is missed in a moment
        self.target, self.tokenizer = opened(target, tokenizer, **how)
        self._speculators = Speculators(
            self.target, self.tokenizer, draft, method=self.method, rule=rule, decides=decides
        )
        self._speculators.bundled = bundled
        made = self._speculators.usual(settings, anyhow=method is None)
        self.engine = Engine(self.target, *made, scheduler)
        self._ready = Requests(self.target, self.tokenizer)
        self._lock, self._process = RLock(), os.getpid()
        self._running: dict[int, Sequence] = {}
        self._closed = False

    def generate(
        self, prompts: Prompt | List[Prompt], params: SamplingParams | List[SamplingParams] | None = None
    ) -> list[Completion]:
        """Complete every prompt, all of them together; the answers come in the order of the prompts.

        `params` are for all prompts, or a list with one for each. Where `params.n` is more than 1, the answers to one
        prompt follow one another, with the seeds seed, seed + 1, …. Raises InvalidRequest before any work starts when a
        prompt or a parameter cannot be served.
        """
        asked = per_prompt(listed(prompts), params)
        sequences = [one for prompt, wish in asked for one in self.prepare(prompt, wish)]
        said: dict[int, list[Delta]] = {}
        try:
            for sequence in sequences:
                self.begin(sequence)
            for sequence in sequences:
                said[sequence.id] = list(self._deltas(sequence))
        finally:
            for sequence in sequences:
                self.forget(sequence)
        return [self.completion(sequence, said[sequence.id]) for sequence in sequences]

    def stream(self, prompt: Prompt, params: SamplingParams | None = None) -> Iterator[Delta]:
        """Complete one prompt and yield what each round adds. Closing the iterator gives the request up."""
        sequence, *more = self.prepare(prompt, params)
        if more:
            raise InvalidRequest(f"cannot stream n={1 + len(more)} answers at once: a stream is one text. Use n=1")
        return self._stream(sequence)

    def chat(self, messages: List[Message], params: SamplingParams | None = None) -> Completion:
        """Answer a conversation, in the model's own chat template."""
        if params is not None and params.n > 1:
            raise InvalidRequest(
                f"cannot answer a chat with n={params.n} completions: chat returns one. Use generate(render(messages))"
            )
        return self.generate([self.render(messages)], params)[0]

    def close(self) -> None:
        """Give up every request and free the models; their readers get an error. May be called twice."""
        if self.forked:
            return
        with self._lock:
            for sequence in list(self._running.values()):
                sequence.error = InvalidRequest("cannot finish this request: the LLM was closed. Make another LLM")
                self.engine.abort(sequence)
            if not self._closed:
                del self.engine, self.target, self._speculators, self._ready
            self._closed = True

    def __enter__(self) -> LLM:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()

    def __repr__(self) -> str:
        if self._closed:
            return "<LLM, closed>"
        target = self.target
        about = f"method={self.method!r}, rule={self.engine.rule.name!r}, width={type(self.engine.width).__name__}"
        kind = str(target.dtype).removeprefix("torch.")
        return f"LLM({target.name!r}, {about}, dtype={kind!r}, device='{target.device}', way={target.capability.way!r})"

    def save_draft(self, folder: str | Path) -> None:
        """Write the draft model with what it has learnt, as a checkpoint that `draft=` takes; whole or not at all.

        Raises InvalidRequest where there is no draft model, or something of that name already.
        """
        model = self.engine.drafter.pupil
        if model is None:
            raise InvalidRequest(f"the method {self.method} has no draft model that learns, so there is none to save")
        with self._alone():
            save(model, Path(folder), self.tokenizer)

    @property
    def progress(self) -> Progress | None:
        """How learning goes; None where nothing learns."""
        return self.engine.drafter.progress if isinstance(self.engine.drafter, Learner) else None

    def render(self, messages: List[Message]) -> list[int]:
        """Token ids of a conversation up to where the assistant speaks. Raises InvalidRequest where it has no form."""
        with self._alone():
            return self._ready.render(messages)

    # ---- sequences, one by one: for callers that run rounds themselves

    def _stream(self, sequence: Sequence) -> Iterator[Delta]:
        self.begin(sequence)
        try:
            yield from self._deltas(sequence)
        finally:
            self.forget(sequence)

    def begin(self, sequence: Sequence) -> None:
        """Queue a sequence that `prepare` made."""
        with self._alone():
            self._running[sequence.id] = sequence
            self.engine.add(sequence, self._speculators.asked(self.engine, sequence.params))

    def _deltas(self, sequence: Sequence) -> Iterator[Delta]:
        """Deltas of one sequence; those of others that run beside it are kept for whoever reads them."""
        while True:
            with self._alone(closed=True):  # for one round at a time, and never while the caller has the delta
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
        """One round of the engine; an error that ends one sequence is kept in `Sequence.error` for its reader.

        What was committed is in `Sequence.unread`, also where this raises. Raises what is no sequence's own fault.
        """
        with self._alone():
            try:
                self.engine.step()
            except Exception as error:
                failed = [one for one in self._running.values() if one.finish_reason == "abort"]
                if not failed:
                    raise
                for sequence in failed:
                    sequence.error = sequence.error or error

    def forget(self, sequence: Sequence) -> None:
        """Be done with a sequence; one that still runs is given up."""
        if self.forked:
            return
        with self._lock:
            if sequence.finish_reason is None:
                self.engine.abort(sequence)
            self._running.pop(sequence.id, None)

    def prepare(self, prompt: Prompt, params: SamplingParams | None) -> list[Sequence]:
        """Make `params.n` sequences for a prompt. Raises InvalidRequest for what cannot be served."""
        with self._alone():  # a tokenizer serves one thread at a time
            made = self._ready.sequences(prompt, params)
            self._speculators.asked(self.engine, made[0].params)
        return made

    @property
    def forked(self) -> bool:
        """This is not the process that made the LLM, but a fork of it."""
        return os.getpid() != self._process

    def check_process(self) -> None:
        """Raise InvalidRequest in a forked process, where a thread that is not there may hold a lock for ever."""
        if self.forked:
            raise InvalidRequest(
                "cannot use this LLM in a forked process: its threads stayed in the parent. Start the process with "
                "multiprocessing's 'spawn'"
            )

    @contextmanager
    def _alone(self, *, closed: bool = False) -> Iterator[None]:
        """Hold the lock of an LLM that is open, or also of a `closed` one, in the process that made it."""
        self.check_process()
        with self._lock:
            if self._closed and not closed:
                raise InvalidRequest("cannot use this LLM: it was closed. Make another one")
            yield

    def completion(self, sequence: Sequence, deltas: List[Delta]) -> Completion:
        """What a sequence has become, of all its deltas."""
        reported: list[TokenLogprob] | None = None
        if sequence.params.logprobs is not None:
            reported = [logprob for delta in deltas for logprob in delta.logprobs]
        return Completion(
            text="".join(delta.text for delta in deltas),
            tokens=sequence.tokens[sequence.prompt :],
            finish_reason=sequence.finish_reason or "abort",
            seed=sequence.seed,
            stats=sequence.stats,
            prompt_tokens=sequence.tokens[: sequence.prompt],
            logprobs=reported,
            method=sequence.params.method or self.method,
            undrafted=sequence.undrafted,
        )


def _likely(draft: Sources) -> str:
    return next(iter(draft), WITH_DRAFT) if isinstance(draft, Mapping) else usual(draft)
