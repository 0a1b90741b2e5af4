"""OpenAI's completions of plain prompts: POST /v1/completions."""

from collections.abc import Mapping
from types import MappingProxyType
from typing import Annotated, Any, ClassVar

from pydantic import AliasChoices, Field

from foreword.api.requests import Requests
from foreword.chats.prompts import ids_of
from foreword.errors import InvalidRequest
from foreword.types import Delta, TokenLogprob
from foreword_server.answer import Answer, Call, Choice, Shown
from foreword_server.dialects.common import (
    OpenAIDialect,
    StreamOptions,
    recording,
    rounds,
    trace_of,
)
from foreword_server.dialects.constraints import constraint
from foreword_server.dialects.fields import Logprobs, Sampled
from foreword_server.dialects.translate import Translator
from foreword_server.limits import MOST_ITEMS
from foreword_server.output import Text
from foreword_server.wire import event

MAX_TOKENS = 16
"""Tokens. Length of an answer when the request gives none, as in OpenAI's API."""
MOST_PROMPTS = 1024
"""Prompts of a request."""
Texts = Annotated[list[str], Field(fail_fast=True, max_length=MOST_PROMPTS)]
TokenIds = Annotated[list[int], Field(fail_fast=True, max_length=MOST_ITEMS)]
Prompts = Annotated[list[TokenIds], Field(fail_fast=True, max_length=MOST_PROMPTS)]
FIM = (
    ("<|fim_prefix|>", "<|fim_suffix|>", "<|fim_middle|>"),
    ("<fim_prefix>", "<fim_suffix>", "<fim_middle>"),
    ("<|fim_begin|>", "<|fim_hole|>", "<|fim_end|>"),
    ("<PRE>", "<SUF>", "<MID>"),
)
"""Fill-in-the-middle tokens: before the prefix, the suffix and the middle."""


class CompletionBody(Sampled):
    """A request for completions."""

    prompt: str | Texts | TokenIds | Prompts
    max_tokens: int | None = Field(
        None, ge=-1, validation_alias=AliasChoices("max_tokens", "n_predict")
    )
    n: int | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    logprobs: Logprobs | None = None
    echo: bool | None = None
    add_special_tokens: bool | None = None
    suffix: str | None = None
    response_format: dict[str, Any] | None = None

    LARGE: ClassVar[tuple[str, ...]] = ("prompt",)


class CompletionDialect(OpenAIDialect):
    """How an answer is written as text completions."""

    WHOLE = CHUNK = "text_completion"
    PREFIX = "cmpl-"

    def __init__(self, body: CompletionBody, translator: Translator) -> None:
        super().__init__(body, body.stream_options, translator)
        self._body, self._tokenizer = body, translator.tokenizer
        self._places: dict[int, int] = {}
        """Choice -> characters written so far."""

    @staticmethod
    def call(body: CompletionBody, translator: Translator) -> Call:
        """Translate a body. Raises ApiError or InvalidRequest."""
        body.check_extra()
        prompts = prompts_of(body, translator.requests)
        limit = MAX_TOKENS if body.max_tokens is None else body.max_tokens
        scored = body.logprobs if body.echo else None
        if limit == 0 and not body.echo:
            raise InvalidRequest(
                "cannot complete with max_tokens=0: the answer is empty. Use 'echo', "
                "or 1 or more"
            )
        if body.echo and body.stream and body.logprobs is not None:
            raise InvalidRequest(
                "cannot stream 'echo' with 'logprobs'. Leave out one of the three"
            )
        limits = constraint(body.response_format, body.model_extra)
        sampling = {
            "n": body.n,
            "logprobs": body.logprobs,
            "trace": trace_of(body.stream_options),
            **limits,
        }
        return translator.text(
            body,
            prompts,
            max_tokens=limit,
            stream=bool(body.stream),
            scored=scored,
            sampling=sampling,
        )

    def whole(self, answer: Answer) -> dict[str, Any]:
        """Return the body of a complete answer."""
        if answer.call.generates:
            choices = [
                self._choice(
                    choice.index,
                    answer.prompt_of(choice),
                    choice.text,
                    choice.logprobs,
                    choice.finish_reason,
                    answer,
                )
                | {
                    "stop_reason": choice.request.stop_reason,
                    "seed": choice.request.seed,
                    **rounds(answer, choice),
                }
                for choice in answer.choices
            ]
        else:
            numbers = range(len(answer.call.prompts))
            choices = [
                self._choice(number, number, "", [], "length", answer)
                for number in numbers
            ]
        return self._whole(answer, choices)

    def _choice(
        self,
        index: int,
        prompt: int,
        text: str,
        generated: list[TokenLogprob],
        reason: str,
        answer: Answer,
    ) -> dict[str, Any]:
        scored: list[TokenLogprob | None] = [
            *(answer.scores[prompt] if answer.scores else []),
            *generated,
        ]
        tokens = ids_of(answer.call.prompts[prompt])
        echoed = self._tokenizer.decode(tokens) if self._body.echo else ""
        logprobs = None
        if self._body.logprobs is not None:
            ids = [one.token if one is not None else tokens[0] for one in scored]
            logprobs = self._logprobs(ids, scored, 0)
        return {
            "index": index,
            "text": echoed + text,
            "logprobs": logprobs,
            "finish_reason": reason,
        }

    def _logprobs(
        self, ids: list[int], scored: list[TokenLogprob | None], start: int
    ) -> dict[str, Any]:
        """Return the legacy block, four lists; `start`: characters before."""
        texts = [self._texts(token) for token in ids]
        top: list[dict[str, float] | None] = [
            None
            if one is None
            else {
                self._texts(token): logprob
                for token, logprob in one.top[: self._body.logprobs]
            }
            for one in scored
        ]
        offsets = [start]
        for text in texts[:-1]:
            offsets.append(offsets[-1] + len(text))
        return {
            "tokens": texts,
            "token_logprobs": [None if one is None else one.logprob for one in scored],
            "top_logprobs": top,
            "text_offset": offsets[: len(texts)],
        }

    def start(self, answer: Answer) -> bytes:
        """Return the echoed prompts, if asked for."""
        self._begin(answer)
        if not self._body.echo:
            return b""
        prompts = [
            self._tokenizer.decode(answer.call.prompts[answer.prompt_of(choice)])
            for choice in answer.choices
        ]
        return b"".join(
            self._chunk(choice, text)
            for choice, text in zip(answer.choices, prompts, strict=True)
        )

    def push(self, choice: Choice, events: list[Shown], delta: Delta) -> bytes:
        """Return the chunk of one delta."""
        text = "".join(one.text for one in events if isinstance(one, Text))
        logprobs = None
        if delta.logprobs:
            offset = self._places.get(choice.index, 0)
            logprobs = self._logprobs(
                [one.token for one in delta.logprobs], list(delta.logprobs), offset
            )
            self._places[choice.index] = offset + len(text)
        reason = choice.finish_reason if choice.ended else None
        more: dict[str, Any] = {}
        if delta.round is not None:
            more["speculation"] = delta.round.as_json()
        if choice.ended:
            more["stop_reason"] = choice.request.stop_reason
            if self._answer is not None:
                more |= recording(self._answer, choice)
        return (
            self._chunk(choice, text, logprobs, reason, more)
            if text or logprobs or reason or more
            else b""
        )

    def ping(self) -> bytes:
        """Return a chunk without text: clients count no comments."""
        if self._answer is None:
            return super().ping()
        return self._chunk(self._answer.choices[0], "")

    def _chunk(
        self,
        choice: Choice,
        text: str,
        logprobs: dict[str, Any] | None = None,
        reason: str | None = None,
        more: Mapping[str, Any] = MappingProxyType({}),
    ) -> bytes:
        written = {
            "index": choice.index,
            "text": text,
            "logprobs": logprobs,
            "finish_reason": reason,
            **more,
        }
        extra = {"usage": None} if self._options.include_usage else {}
        return event({**self._base, "choices": [written], **extra})


def prompts_of(body: CompletionBody, requests: Requests) -> list[list[int]]:
    """Return the prompts as tokens. Raises InvalidRequest for none, or too many."""
    prompt = body.prompt
    if isinstance(prompt, str):
        prompts: list[Any] = [prompt]
    elif prompt and isinstance(prompt[0], int):
        prompts = [prompt]
    else:
        prompts = list(prompt)
    if not prompts or len(prompts) > MOST_PROMPTS:
        raise InvalidRequest(
            f"cannot complete {len(prompts)} prompts: give 1 to {MOST_PROMPTS}"
        )
    if body.suffix:
        prompts = [
            _between(prompt, body.suffix, requests.tokenizer) for prompt in prompts
        ]
    special = body.add_special_tokens is not False
    return [
        requests.ids(one, special=special) if isinstance(one, str) else list(one)
        for one in prompts
    ]


def _between(prompt: str | list[int], suffix: str, tokenizer: Any) -> str:
    """Return the prompt that asks for the text between a prompt and a suffix.

    Raises InvalidRequest if the model has no tokens for it (FIM; Bavarian et al. 2022).
    """
    known = tokenizer.get_vocab()
    for before, between, after in FIM:
        if {before, between, after} <= known.keys():
            text = prompt if isinstance(prompt, str) else tokenizer.decode(prompt)
            return f"{before}{text}{between}{suffix}{after}"
    raise InvalidRequest(
        "cannot use 'suffix': this model has no tokens to fill in the middle. Leave it "
        "out"
    )
