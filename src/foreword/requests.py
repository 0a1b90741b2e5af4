"""Requests made ready to run: a prompt and its parameters, checked against the target and turned into a sequence.

Knows the tokenizer and the target's limits; knows nothing about how sequences run.
"""

from __future__ import annotations

import secrets
from collections.abc import Mapping
from collections.abc import Sequence as List
from dataclasses import replace
from itertools import count
from typing import cast

from transformers import BatchEncoding

from foreword.errors import InvalidRequest, check_unicode
from foreword.model import Model, Tokenizer
from foreword.prompts import Prompt, known_roles, token_ids, turns
from foreword.reader import TextReader
from foreword.types import SamplingParams, Sequence

Message = Mapping[str, str]
"""{"role": "user", "content": "…"}, as chat templates take it."""
SEEDS = 2**63
"""Seeds lie below it."""


class Requests:
    """Makes sequences for one target. Not to be used by two threads at once: a tokenizer serves one at a time."""

    def __init__(self, target: Model, tokenizer: Tokenizer) -> None:
        self._target, self._tokenizer = target, tokenizer
        self._ids = count(1)

    def sequences(self, prompt: Prompt, params: SamplingParams | None) -> list[Sequence]:
        """`params.n` sequences that answer one prompt, with the seeds seed, seed + 1, ….

        Raises InvalidRequest where the prompt or a parameter cannot be served.
        """
        params = SamplingParams() if params is None else params
        if not isinstance(params, SamplingParams):
            raise InvalidRequest(f"params must be SamplingParams, or a list with one for each prompt, got {params!r}")
        params = replace(params)  # whoever made them may go on changing them
        tokens = (
            self._tokenizer(check_unicode("a prompt", prompt))["input_ids"]
            if isinstance(prompt, str)
            else token_ids(prompt)
        )
        self._check(tokens, params)
        if params.bad_words:
            params = replace(params, bad_word_ids=params.bad_word_ids + self._bad_word_ids(params.bad_words))
        prediction = self._prediction(params.prediction)
        made = []
        for number in range(params.n):
            seed = secrets.randbits(63) if params.seed is None else (params.seed + number) % SEEDS
            reader = TextReader(self._tokenizer, tokens, params.stop, params.skip_special_tokens)
            ids = list(tokens)
            made.append(Sequence(next(self._ids), ids, len(ids), params, seed, self._eos, reader, prediction))
        return made

    def render(self, messages: List[Message]) -> list[int]:
        """Token ids of a conversation up to where the assistant speaks. Raises InvalidRequest where it has no form."""
        if not self._tokenizer.chat_template:
            raise InvalidRequest(f"{self._target.name} has no chat template; use generate with a text prompt")
        given = turns(messages)
        known_roles(given, str(self._tokenizer.chat_template), self._tokenizer.apply_chat_template)
        try:
            ids = self._tokenizer.apply_chat_template(given, add_generation_prompt=True, return_dict=True)
        except Exception as error:  # a template is a program of others
            raise InvalidRequest(f"the chat template of {self._target.name} refuses these messages: {error}") from error
        return list(cast("BatchEncoding", ids)["input_ids"])

    def _check(self, tokens: list[int], params: SamplingParams) -> None:
        context, vocab = self._target.context, self._target.vocab
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
        ids = self._tokenizer(said, add_special_tokens=False)["input_ids"] if isinstance(said, str) else said
        return tuple(token for token in ids if token < self._target.vocab)

    @property
    def _eos(self) -> frozenset[int]:
        own = self._tokenizer.eos_token_id
        return self._target.eos or (frozenset([own]) if isinstance(own, int) else frozenset())

    def _bad_word_ids(self, words: tuple[str, ...]) -> tuple[tuple[int, ...], ...]:
        """Every word as it is written at the start of a text and after a space."""
        spellings = [spelling for word in words for spelling in (word, " " + word.lstrip())]
        ids = (self._tokenizer(spelling, add_special_tokens=False)["input_ids"] for spelling in spellings)
        return tuple(dict.fromkeys(tuple(word) for word in ids if word))
