"""From requests to sequences: tokenize prompts, render chats, and check parameters against the target."""

from __future__ import annotations

import secrets
from collections.abc import Mapping
from collections.abc import Sequence as List
from dataclasses import replace
from itertools import count
from typing import cast

from transformers import BatchEncoding

from foreword.detokenizer import Detokenizer
from foreword.errors import InvalidRequest, check_unicode
from foreword.model import Model, Tokenizer
from foreword.prompts import Prompt, known_roles, token_ids, turns
from foreword.types import SamplingParams, Sequence
from foreword.types.params import NODES

Message = Mapping[str, str]
"""{"role": "user", "content": "…"}, the format of chat templates."""
SEEDS = 2**63
"""Number of seeds; a seed is in [0, SEEDS)."""


class Requests:
    """Builder of sequences for one target. Not thread-safe, because tokenizers are not."""

    def __init__(self, target: Model, tokenizer: Tokenizer) -> None:
        self._target, self._tokenizer = target, tokenizer
        self._ids = count(1)

    def sequences(self, prompt: Prompt, params: SamplingParams | None) -> list[Sequence]:
        """Return `params.n` sequences for one prompt, with the seeds seed, seed + 1, ….

        Raises InvalidRequest if the prompt or a parameter cannot be served.
        """
        params = SamplingParams() if params is None else params
        if not isinstance(params, SamplingParams):
            raise InvalidRequest(f"params must be SamplingParams, or a list with one for each prompt, got {params!r}")
        params = replace(params)  # the caller may go on changing them
        tokens = (
            self._tokenizer(check_unicode("a prompt", prompt))["input_ids"]
            if isinstance(prompt, str)
            else token_ids(prompt)
        )
        self._check(tokens, params)
        if params.bad_words:
            params = replace(params, bad_word_ids=params.bad_word_ids + self._bad_word_ids(params.bad_words))
        prediction = self._prediction(params.prediction)
        sequences = []
        for number in range(params.n):
            seed = secrets.randbits(63) if params.seed is None else (params.seed + number) % SEEDS
            reader = Detokenizer(self._tokenizer, tokens, params.stop, params.skip_special_tokens)
            ids = list(tokens)
            sequences.append(Sequence(next(self._ids), ids, len(ids), params, seed, self._eos, reader, prediction))
        return sequences

    def render(self, messages: List[Message]) -> list[int]:
        """Return the prompt token ids of a conversation. Raises InvalidRequest if the chat template refuses it."""
        if not self._tokenizer.chat_template:
            raise InvalidRequest(
                f"cannot render a chat: {self._target.name} has no chat template. Use generate with a text prompt"
            )
        conversation = turns(messages)
        known_roles(conversation, str(self._tokenizer.chat_template), self._tokenizer.apply_chat_template)
        try:
            ids = self._tokenizer.apply_chat_template(conversation, add_generation_prompt=True, return_dict=True)
        except Exception as error:  # a template can raise anything
            raise InvalidRequest(
                f"cannot render this chat: the chat template of {self._target.name} refuses these messages: {error}"
            ) from error
        return list(cast("BatchEncoding", ids)["input_ids"])

    def _check(self, tokens: list[int], params: SamplingParams) -> None:
        context, vocab = self._target.context, self._target.vocab
        if not tokens:
            raise InvalidRequest("cannot run this request: the prompt is empty. Give at least one token")
        if any(not 0 <= token < vocab for token in tokens):
            raise InvalidRequest(
                f"cannot run this request: the prompt holds ids outside the vocabulary of {vocab} tokens"
            )
        if len(tokens) >= context:
            raise InvalidRequest(
                f"cannot run this request: the prompt has {len(tokens)} tokens, the limit is {context - 1}. Shorten it"
            )
        if len(tokens) + params.max_tokens > context:
            raise InvalidRequest(
                f"cannot run this request: max_tokens={params.max_tokens} after a prompt of {len(tokens)} tokens "
                f"exceeds the model's context of {context}. Use at most {context - len(tokens)}"
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
            prediction = tuple(self._tokenizer(prediction, add_special_tokens=False)["input_ids"])
        return tuple(token for token in prediction if token < self._target.vocab)

    @property
    def _eos(self) -> frozenset[int]:
        token = self._tokenizer.eos_token_id
        return self._target.eos or (frozenset([token]) if isinstance(token, int) else frozenset())

    def _bad_word_ids(self, words: tuple[str, ...]) -> tuple[tuple[int, ...], ...]:
        """Return the token ids of every word, with and without a leading space."""
        spellings = [spelling for word in words for spelling in (word, " " + word.lstrip())]
        ids = (self._tokenizer(spelling, add_special_tokens=False)["input_ids"] for spelling in spellings)
        return tuple(dict.fromkeys(tuple(word) for word in ids if word))
