"""Text in, text out: tokenizer, chat template, checks of a request, and the engine behind them.

Knows text; knows nothing about models' insides, rules or methods by name.
"""

from __future__ import annotations

import secrets
import warnings
from collections import deque
from collections.abc import Iterator, Mapping
from collections.abc import Sequence as List
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import count
from pathlib import Path
from threading import RLock
from typing import cast

from transformers import BatchEncoding

from foreword import family
from foreword.draft import MODEL, PLAIN, WITH_DRAFT, Recipe, usual
from foreword.draft import method as find_method
from foreword.draft.base import Drafter, Source
from foreword.draft.course import Progress
from foreword.draft.learning import Learner, Learning, taught, teaching
from foreword.draft.pairing import load_anyhow
from foreword.draft.recipe import Sources, shipped
from foreword.engine import NODES, Engine
from foreword.errors import InvalidRequest, VocabularyMismatch
from foreword.model import Mode, Model, load_tokenizer, measure
from foreword.model.weights import save
from foreword.params import whole
from foreword.prompts import Prompt, is_list, listed, token_ids, turns
from foreword.reader import TextReader
from foreword.scheduler import Scheduler
from foreword.types import Completion, Delta, SamplingParams, Sequence, TokenLogprob
from foreword.verify import rule as find_rule
from foreword.width import Fixed, Width, policy

Message = Mapping[str, str]
"""{"role": "user", "content": "…"}, as chat templates take it."""


@dataclass(slots=True)
class _Request:
    """A sequence that runs, what it wrote that nobody has read yet, and the error that ended it, if one did."""

    sequence: Sequence
    unread: deque[Delta] = field(default_factory=deque)
    error: Exception | None = None


class LLM:
    """A target model, a drafter and the loop that joins them.

    >>> llm = LLM()                                              # the small family that ships with Foreword
    >>> llm.generate("The capital of France is", SamplingParams(temperature=0, max_tokens=16))[0].text

    target, draft: folder or hub id; a draft model in memory is ours to change from then on. Without a draft model the
        prompt itself is searched for guesses; `method` names another way (`foreword methods` lists them) and "none"
        decodes plainly. A draft of another tokenizer is translated, unless `method` says "lm"; a head says what it is.
    rule: how guesses are judged. "match" gives the same text as plain decoding with the same seed; the others the same
        distribution. Or what is to be kept, "same-text" or "same-distribution", by the rule that keeps most guesses.
    width: what decides how much is guessed; docs/widths.md has the names.  nodes: instead, so many in every round.
    learn: keep distilling the draft model from what the target says, between rounds (docs/online.md): True, or Learning
        with its share of the time. No text depends on it.
    dtype, device, way: see `Model.load`; the way is the target's.  slots: sequences that run at a time.  chunk: prompt
        tokens read in one round.

    Threads may share one LLM: their requests run together, round by round, and one thread at a time runs a round. An
    error of one request, such as a processor that raises, ends that request alone, and whoever reads it gets the error.
    """

    def __init__(
        self,
        target: str | Path | None = None,
        *,
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
    ) -> None:
        scheduler, _ = Scheduler(slots=slots, chunk=chunk), find_rule(rule)  # a wrong name is refused at once
        decides = policy(width, whole(0, NODES, optional=True)("nodes", nodes))
        if target is None:
            target = family.target()
            named = method or WITH_DRAFT
            draft = shipped(find_method(named), named) if draft is None else draft
        self.method = method or usual(draft)
        drafter = find_method(self.method)
        if drafter.needs and draft is None:
            raise InvalidRequest(f"the method {self.method} needs {drafter.takes}: give draft='folder or hub id'")
        settings = teaching(learn, drafter, self.method)
        if drafter.takes == MODEL and isinstance(draft, str | Path):
            load_tokenizer(draft)  # what is missing is missed in a moment, not after a large target was read
        self.target = Model.load(target, dtype=dtype, device=device, way=way)
        self.tokenizer = load_tokenizer(target)
        wide = Fixed(0) if self.method == PLAIN else decides(partial(measure, self.target))
        made = self._drafter(drafter, draft, settings, anyhow=method is None)
        found = find_rule(rule, draws=drafter.draws, trees=self.target.mode is Mode.TREE)
        self.engine = Engine(self.target, made, found, wide, scheduler)
        self._ids = count(1)
        self._lock = RLock()
        self._requests: dict[int, _Request] = {}

    def _drafter(self, kind: type[Drafter] | Recipe, source: Sources, how: Learning | None, *, anyhow: bool) -> Drafter:
        """A drafter that cannot be had costs speed, not text: the target carries on alone, and says so."""
        load = partial(load_anyhow, kind) if anyhow else kind.load
        try:
            return taught(load(cast("Source", source), self.target, self.tokenizer), self.target, how)
        except (InvalidRequest, VocabularyMismatch):
            raise  # asked for wrongly, which nobody wants to find out from a warning
        except Exception as error:  # noqa: BLE001 - whatever is wrong with a drafter, the target can do without
            warnings.warn(f"no guesses will be made, the drafter could not be loaded: {error}", stacklevel=3)
            return find_method(PLAIN).load(None, self.target, self.tokenizer)

    def generate(
        self, prompts: Prompt | List[Prompt], params: SamplingParams | List[SamplingParams] | None = None
    ) -> list[Completion]:
        """Complete every prompt, all of them together; the answers come in the order of the prompts.

        `params` are for all prompts, or a list with one for each. Raises InvalidRequest before any work starts when a
        prompt or a parameter cannot be served.
        """
        many = listed(prompts)
        wishes = cast("List[SamplingParams]", params if is_list(params) else [params] * len(many))
        if len(wishes) != len(many):
            raise InvalidRequest(f"{len(many)} prompts need one set of parameters or {len(many)}, got {len(wishes)}")
        sequences = [self._sequence(prompt, wish) for prompt, wish in zip(many, wishes, strict=True)]
        said: dict[int, list[Delta]] = {}
        try:
            for sequence in sequences:
                self._begin(sequence)
            for sequence in sequences:
                said[sequence.id] = list(self._deltas(sequence))
        finally:
            for sequence in sequences:
                self._forget(sequence)
        return [_completion(sequence, said[sequence.id]) for sequence in sequences]

    def stream(self, prompt: Prompt, params: SamplingParams | None = None) -> Iterator[Delta]:
        """Complete one prompt and yield what each round adds. Closing the iterator gives the request up."""
        return self._stream(self._sequence(prompt, params))

    def chat(self, messages: List[Message], params: SamplingParams | None = None) -> Completion:
        """Answer a conversation, in the model's own chat template."""
        return self.generate([self.render(messages)], params)[0]

    def save_draft(self, folder: str | Path) -> None:
        """Write the draft model with what it has learnt, as a checkpoint that `draft=` takes; whole or not at all.

        Raises InvalidRequest where there is no draft model, or something of that name already.
        """
        model = self.engine.drafter.pupil
        if model is None:
            raise InvalidRequest(f"the method {self.method} has no draft model that learns, so there is none to save")
        with self._lock:
            save(model, Path(folder), self.tokenizer)

    @property
    def progress(self) -> Progress | None:
        """How learning goes; None where nothing learns."""
        return self.engine.drafter.progress if isinstance(self.engine.drafter, Learner) else None

    def render(self, messages: List[Message]) -> list[int]:
        """Token ids of a conversation up to where the assistant speaks. Raises InvalidRequest where it has no form."""
        if not self.tokenizer.chat_template:
            raise InvalidRequest(f"{self.target.name} has no chat template; use generate with a text prompt")
        given = turns(messages)
        try:
            ids = self.tokenizer.apply_chat_template(given, add_generation_prompt=True, return_dict=True)
        except Exception as error:  # a template is a program of others
            raise InvalidRequest(f"the chat template of {self.target.name} refuses these messages: {error}") from error
        return list(cast("BatchEncoding", ids)["input_ids"])

    def _stream(self, sequence: Sequence) -> Iterator[Delta]:
        self._begin(sequence)
        try:
            yield from self._deltas(sequence)
        finally:
            self._forget(sequence)

    def _begin(self, sequence: Sequence) -> None:
        with self._lock:
            self._requests[sequence.id] = _Request(sequence)
            self.engine.add(sequence)

    def _deltas(self, sequence: Sequence) -> Iterator[Delta]:
        """Deltas of one sequence; those of others that run beside it are kept for whoever reads them."""
        request = self._requests[sequence.id]
        while True:
            with self._lock:  # for one round at a time, and never while the caller has the delta
                if not request.unread:
                    if request.error:
                        raise request.error
                    if sequence.finish_reason:
                        return
                    self._round()
                delta = request.unread.popleft() if request.unread else None
            if delta:
                yield delta

    def _round(self) -> None:
        """One round of the engine; an error that ends one sequence is kept for whoever reads that sequence."""
        try:
            deltas = self.engine.step()
        except Exception as error:
            running = (request for request in self._requests.values() if request.error is None)
            failed = [request for request in running if request.sequence.finish_reason == "abort"]
            if not failed:
                raise
            for request in failed:
                request.error = error
            return
        for delta in deltas:
            self._requests[delta.id].unread.append(delta)

    def _forget(self, sequence: Sequence) -> None:
        with self._lock:
            if sequence.finish_reason is None:
                self.engine.abort(sequence)
            self._requests.pop(sequence.id, None)

    def _sequence(self, prompt: Prompt, params: SamplingParams | None) -> Sequence:
        """Check a request and make it ready to run."""
        params = SamplingParams() if params is None else params
        if not isinstance(params, SamplingParams):
            raise InvalidRequest(f"params must be SamplingParams, or a list with one for each prompt, got {params!r}")
        params = replace(params)  # whoever made them may go on changing them
        with self._lock:  # a tokenizer serves one thread at a time
            tokens = self.tokenizer(prompt)["input_ids"] if isinstance(prompt, str) else token_ids(prompt)
            self._check(tokens, params)
            if params.bad_words:
                params = replace(params, bad_word_ids=params.bad_word_ids + self._bad_word_ids(params.bad_words))
            seed = secrets.randbits(63) if params.seed is None else params.seed
            reader = TextReader(self.tokenizer, tokens, params.stop, params.skip_special_tokens)
            prediction = self._prediction(params.prediction)
            return Sequence(next(self._ids), tokens, len(tokens), params, seed, self._eos, reader, prediction)

    def _check(self, tokens: list[int], params: SamplingParams) -> None:
        context, vocab = self.target.context, self.target.vocab
        if not tokens:
            raise InvalidRequest("the prompt is empty; give at least one token of text to continue")
        if any(not 0 <= token < vocab for token in tokens):
            raise InvalidRequest(f"the prompt holds ids outside the vocabulary of {vocab} tokens")
        if len(tokens) >= context:
            raise InvalidRequest(
                f"the prompt has {len(tokens)} tokens and the model reads at most {context - 1} before writing"
            )
        if len(tokens) + params.max_tokens > context:
            raise InvalidRequest(
                f"max_tokens={params.max_tokens} after a prompt of {len(tokens)} tokens exceeds the model's context of "
                f"{context}; at most {context - len(tokens)} fit"
            )
        named = [*params.stop_token_ids, *params.logit_bias, *(token for word in params.bad_word_ids for token in word)]
        outside = [token for token in named if token >= vocab]
        if outside:
            raise InvalidRequest(f"token ids {outside[:5]} are outside the vocabulary of {vocab} tokens")

    def _prediction(self, said: str | tuple[int, ...]) -> tuple[int, ...]:
        ids = self.tokenizer(said, add_special_tokens=False)["input_ids"] if isinstance(said, str) else said
        return tuple(token for token in ids if token < self.target.vocab)

    @property
    def _eos(self) -> frozenset[int]:
        own = self.tokenizer.eos_token_id
        return self.target.eos or (frozenset([own]) if isinstance(own, int) else frozenset())

    def _bad_word_ids(self, words: tuple[str, ...]) -> tuple[tuple[int, ...], ...]:
        """Every word as it is written at the start of a text and after a space."""
        spellings = [spelling for word in words for spelling in (word, " " + word.lstrip())]
        ids = (self.tokenizer(spelling, add_special_tokens=False)["input_ids"] for spelling in spellings)
        return tuple(dict.fromkeys(tuple(word) for word in ids if word))


def _completion(sequence: Sequence, deltas: list[Delta]) -> Completion:
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
    )
