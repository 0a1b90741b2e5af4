"""From requests to sequences, and on to completions: tokenize prompts, render chats, check parameters."""

from __future__ import annotations

import secrets
from collections.abc import Sequence as List
from dataclasses import replace
from itertools import count
from typing import Any, cast

from transformers import BatchEncoding

from foreword.chats import (
    Message,
    Options,
    Tool,
    check_options,
    check_roles,
    conversation,
    functions_of,
    instructed,
    knows_tools,
    readings,
    template_of,
)
from foreword.detokenizer import Detokenizer
from foreword.errors import ContextExceeded, InvalidRequest, check_unicode
from foreword.model import Model, Seq2Seq, Tokenizer
from foreword.prompts import Prompt, token_ids
from foreword.structured.compiler import Grammars
from foreword.types import Completion, Delta, SamplingParams, Sequence, SpeechPrompt
from foreword.types.params import NODES

SEEDS = 2**63
"""Number of seeds; a seed is in [0, SEEDS)."""


class Requests:
    """Builder of sequences for one target. Not thread-safe, because tokenizers are not."""

    def __init__(self, target: Model, tokenizer: Tokenizer) -> None:
        self._target, self.tokenizer = target, tokenizer
        self._ids = count(1)
        self._grammars = Grammars(tokenizer, target.vocab, self._eos)

    def compile(self, params: SamplingParams | None) -> None:
        """Compile what an answer must follow, if anything, and cache it. Thread-safe. Raises InvalidRequest."""
        if isinstance(params, SamplingParams):
            self._grammars.compiled(params)

    def sequences(self, prompt: Prompt | SpeechPrompt, params: SamplingParams | None) -> list[Sequence]:
        """Return `params.n` sequences for one prompt, with the seeds seed, seed + 1, ….

        Raises InvalidRequest if the prompt or a parameter cannot be served.
        """
        params = SamplingParams() if params is None else params
        if not isinstance(params, SamplingParams):
            raise InvalidRequest(f"params must be SamplingParams, or a list with one for each prompt, got {params!r}")
        params = replace(params)  # the caller may go on changing them
        tokens = self._tokens(prompt)
        self._check(tokens, params)
        source: tuple[int, ...] = ()
        features = prompt.features if isinstance(prompt, SpeechPrompt) else None
        if (rules := self._text_seq2seq) is not None:
            source, tokens, params = tuple(tokens), list(rules.start), rules.applied(params)
        end = None if rules is None else rules.last(params)
        if params.bad_words:
            params = replace(params, bad_word_ids=params.bad_word_ids + self._bad_word_ids(params.bad_words))
        prediction, grammar = self._prediction(params.prediction), self._grammars.compiled(params)
        sequences = []
        for number in range(params.n):
            seed = secrets.randbits(63) if params.seed is None else (params.seed + number) % SEEDS
            reader = Detokenizer(self.tokenizer, tokens, params.stop, params.skip_special_tokens)
            ids = list(tokens)
            follows = self._grammars.answer(grammar, params, len(ids)) if grammar else None
            sequences.append(
                Sequence(
                    next(self._ids),
                    ids,
                    len(ids),
                    params,
                    seed,
                    self._eos,
                    reader,
                    prediction,
                    follows,
                    source,
                    features,
                    end,
                )
            )
        return sequences

    def render(
        self, messages: List[Message], tools: List[Tool] | None = None, template_options: Options | None = None
    ) -> list[int]:
        """Return the prompt token ids of a conversation, with tools that the model may call.

        A template that knows no tools gets them, and calls and results, as text. `template_options` are the template's
        own. Raises InvalidRequest if a message, a tool or an option is wrong, or if the template refuses the messages.
        """
        functions, options, turns = functions_of(tools), check_options(template_options), conversation(messages)
        shown: list[Any] | None = [dict(function.tool) for function in functions] or None
        if not self.tokenizer.chat_template:
            raise InvalidRequest(
                f"cannot render a chat: {self._target.name} has no chat template. Use generate with a text prompt"
            )
        template = template_of(self.tokenizer.chat_template, tools=shown is not None)
        if not knows_tools(template):
            turns, shown = instructed(turns, functions), None
        apply, errors = self.tokenizer.apply_chat_template, list[Exception]()
        for form in readings(turns, template):
            check_roles(form, template, apply)
            try:
                return list(cast("BatchEncoding", apply(form, tools=shown, return_dict=True, **options))["input_ids"])
            except Exception as error:  # noqa: BLE001 - a template can raise anything
                errors.append(error)
        raise InvalidRequest(
            f"cannot render this chat: the chat template of {self._target.name} refuses these messages: {errors[0]}"
        ) from errors[0]

    def _tokens(self, prompt: Prompt | SpeechPrompt) -> list[int]:
        if isinstance(prompt, SpeechPrompt):
            return list(prompt.tokens)
        if self._target.seq2seq is not None and self._target.seq2seq.sound:
            raise InvalidRequest(f"cannot complete a text: {self._target.name} reads sound. Use LLM.transcribe")
        if isinstance(prompt, str):
            return self.tokenizer(check_unicode("a prompt", prompt))["input_ids"]
        return token_ids(prompt)

    @property
    def _text_seq2seq(self) -> Seq2Seq | None:
        """The rules of a target whose prompt is a source of text; None for others."""
        rules = self._target.seq2seq
        return None if rules is None or rules.sound else rules

    def _check(self, tokens: list[int], params: SamplingParams) -> None:
        context, vocab = self._target.context, self._target.vocab
        if not tokens:
            raise InvalidRequest("cannot run this request: the prompt is empty. Give at least one token")
        if any(not 0 <= token < vocab for token in tokens):
            raise InvalidRequest(
                f"cannot run this request: the prompt holds ids outside the vocabulary of {vocab} tokens"
            )
        rules = self._text_seq2seq
        longest = context - 1 if rules is None else rules.longest or context
        if len(tokens) > longest:
            raise ContextExceeded(
                f"cannot run this request: the prompt has {len(tokens)} tokens, the limit is {longest}. Shorten it"
            )
        begun = len(tokens) if rules is None else len(rules.start)
        if begun + params.max_tokens > context:
            raise ContextExceeded(
                f"cannot run this request: max_tokens={params.max_tokens} after a prompt of {begun} tokens "
                f"exceeds the model's context of {context}. Use at most {context - begun}"
            )
        pool = self._target.backend.pool
        if pool is not None and pool.limit is not None:
            needed = pool.room(len(tokens) + params.max_tokens + NODES)
            if needed > pool.limit:
                raise InvalidRequest(
                    f"cannot run this request: a prompt of {len(tokens)} tokens, max_tokens={params.max_tokens} and "
                    f"{NODES} draft tokens need keys and values of {needed} tokens, more than "
                    f"cache_tokens={pool.limit}. Lower max_tokens, shorten the prompt or raise cache_tokens"
                )
        named = [*params.stop_token_ids, *params.logit_bias, *(token for word in params.bad_word_ids for token in word)]
        outside = [token for token in named if token >= vocab]
        if outside:
            raise InvalidRequest(
                f"cannot run this request: token ids {outside[:5]} are outside the vocabulary of {vocab} tokens"
            )

    def _prediction(self, prediction: str | tuple[int, ...]) -> tuple[int, ...]:
        if isinstance(prediction, str):
            prediction = tuple(self.tokenizer(prediction, add_special_tokens=False)["input_ids"])
        return tuple(token for token in prediction if token < self._target.vocab)

    @property
    def _eos(self) -> frozenset[int]:
        token = self.tokenizer.eos_token_id
        return self._target.eos or (frozenset([token]) if isinstance(token, int) else frozenset())

    def _bad_word_ids(self, words: tuple[str, ...]) -> tuple[tuple[int, ...], ...]:
        """Return the token ids of every word, with and without a leading space."""
        spellings = [spelling for word in words for spelling in (word, " " + word.lstrip())]
        ids = (self.tokenizer(spelling, add_special_tokens=False)["input_ids"] for spelling in spellings)
        return tuple(dict.fromkeys(tuple(word) for word in ids if word))


def completed(sequence: Sequence, deltas: List[Delta], method: str) -> Completion:
    """Return the completion of a sequence that was drafted by `method`, from all its deltas."""
    logprobs = [logprob for delta in deltas for logprob in delta.logprobs]
    return Completion(
        text="".join(delta.text for delta in deltas),
        tokens=sequence.tokens[sequence.prompt :],
        finish_reason=sequence.finish_reason or "abort",
        seed=sequence.seed,
        stats=sequence.stats,
        prompt_tokens=sequence.given,
        logprobs=None if sequence.params.logprobs is None else logprobs,
        method=method,
        undrafted=sequence.undrafted,
        rounds=[delta.round for delta in deltas if delta.round] if sequence.params.trace else None,
    )
