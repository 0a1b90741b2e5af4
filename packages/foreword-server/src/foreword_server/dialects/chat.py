"""OpenAI's chat completions: POST /v1/chat/completions."""

from collections.abc import Mapping
from time import perf_counter
from types import MappingProxyType
from typing import Annotated, Any, Literal

from pydantic import AliasChoices, Field, model_validator

from foreword.errors import InvalidRequest
from foreword.types import Delta
from foreword_server.answer import Answer, Call, Choice, Shown
from foreword_server.dialects.chat_tools import (
    Deltas,
    as_functions,
    free_form,
    function_choice,
    written,
)
from foreword_server.dialects.common import (
    OpenAIDialect,
    StreamOptions,
    measured,
    recording,
    rounds,
    trace_of,
)
from foreword_server.dialects.constraints import constraint
from foreword_server.dialects.fields import (
    Logprobs,
    Messages,
    Sampled,
    Tools,
    with_generation_config,
)
from foreword_server.dialects.response_items import as_chat
from foreword_server.dialects.translate import PREFILL, Chat, Translator
from foreword_server.errors import ApiError
from foreword_server.wire import event

Modalities = Annotated[
    list[Literal["text", "audio"]], Field(fail_fast=True, max_length=2)
]


class ChatBody(Sampled):
    """A request for a chat completion."""

    messages: Messages = Field(min_length=1)
    max_tokens: int | None = Field(
        None, validation_alias=AliasChoices("max_tokens", "n_predict")
    )
    max_completion_tokens: int | None = None
    n: int | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    logprobs: bool | None = None
    top_logprobs: Logprobs | None = None
    tools: Tools | None = None
    tool_choice: str | dict[str, Any] | None = None
    parallel_tool_calls: bool | None = None
    response_format: dict[str, Any] | None = None
    chat_template_kwargs: dict[str, Any] | None = None
    continue_final_message: bool | None = Field(
        None, description="Whether the answer goes on with the last message."
    )
    add_generation_prompt: bool | None = None
    reasoning_effort: str | None = None
    modalities: Modalities | None = None
    return_progress: bool | None = Field(
        None, description="Whether the stream says how much of the prompt is read."
    )

    @model_validator(mode="before")
    @classmethod
    def _in_fields_of_chat(cls, body: Any) -> Any:
        """Take `input` of responses as messages, and settings of `transformers chat`
        from its `generation_config`.
        """
        if not isinstance(body, dict):
            return body
        return with_generation_config(
            as_chat(body) if "input" in body and "messages" not in body else body
        )

    def chat(self) -> Chat:
        """Return the conversation."""
        options = dict(self.chat_template_kwargs or {})
        if self.reasoning_effort is not None:
            options.setdefault("reasoning_effort", self.reasoning_effort)
        if self.add_generation_prompt is not None:
            options.setdefault("add_generation_prompt", self.add_generation_prompt)
        if self.continue_final_message:
            options |= PREFILL
        return Chat(
            messages=self.messages,
            tools=as_functions(self.tools),
            tool_choice=function_choice(self.tool_choice) or "auto",
            parallel=self.parallel_tool_calls,
            options=options,
        )

    def check(self) -> None:
        """Raise ApiError 400 for what cannot be honoured."""
        self.check_extra()
        if self.modalities and "audio" in self.modalities:
            raise ApiError(
                400,
                "cannot answer with audio: this model writes text. Leave out "
                "'modalities'",
            )
        if (self.model_extra or {}).get("functions"):
            raise ApiError(
                400,
                "cannot use 'functions': the field was replaced. Use 'tools'",
                param="functions",
            )


class ChatDialect(OpenAIDialect):
    """How an answer is written as chat completions."""

    WHOLE = "chat.completion"
    CHUNK = "chat.completion.chunk"
    PREFIX = "chatcmpl-"
    HEAD = MappingProxyType({"service_tier": "default"})

    def __init__(self, body: ChatBody, translator: Translator) -> None:
        super().__init__(body, body.stream_options, translator)
        self._shows_progress = bool(body.return_progress)
        self._read = -1
        """Prompt tokens read, in the last chunk about it."""
        self._top = (body.top_logprobs or 0) if body.logprobs else None
        self._free = free_form(body.tools)
        self._deltas = Deltas(self._free)

    @staticmethod
    def call(body: ChatBody, translator: Translator) -> Call:
        """Translate a body. Raises ApiError or InvalidRequest."""
        body.check()
        limit = (
            body.max_completion_tokens
            if body.max_completion_tokens is not None
            else body.max_tokens
        )
        top = (body.top_logprobs or 0) if body.logprobs else None
        if body.top_logprobs and not body.logprobs:
            raise InvalidRequest(
                "cannot list top_logprobs: 'logprobs' is not set. Set it to true"
            )
        sampling = {
            "n": body.n,
            "logprobs": top,
            "trace": trace_of(body.stream_options),
            **constraint(body.response_format, body.model_extra),
        }
        return translator.chat(
            body,
            body.chat(),
            max_tokens=limit,
            stream=bool(body.stream),
            sampling=sampling,
        )

    def whole(self, answer: Answer) -> dict[str, Any]:
        """Return the body of a complete answer."""
        choices = [
            {
                "index": choice.index,
                "message": self._message(choice),
                "logprobs": self._logprobs(choice.logprobs),
                "finish_reason": choice.finish_reason,
                "stop_reason": choice.request.stop_reason,
                "seed": choice.request.seed,
                **rounds(answer, choice),
            }
            for choice in answer.choices
        ]
        return self._whole(answer, choices)

    def _message(self, choice: Choice) -> dict[str, Any]:
        message: dict[str, Any] = {
            "role": "assistant",
            "content": choice.text,
            "refusal": None,
        }
        if choice.reasoning:
            message["reasoning_content"] = choice.reasoning
        if choice.calls:
            message["content"] = choice.text or None
            message["tool_calls"] = [written(one, self._free) for one in choice.calls]
        return message

    def _logprobs(self, tokens: list[Any]) -> dict[str, Any] | None:
        if self._top is None:
            return None
        return {
            "content": [self._texts.entry(one, self._top) for one in tokens],
            "refusal": None,
        }

    def start(self, answer: Answer) -> bytes:
        """Return the chunks that open each choice."""
        self._begin(answer)
        opening = b"".join(
            self._chunk(choice, {"role": "assistant", "content": ""})
            for choice in answer.choices
        )
        return opening + self.progress(answer)

    def push(self, choice: Choice, events: list[Shown], delta: Delta) -> bytes:
        """Return the chunks of one delta: one an event, and a choice's last one."""
        # the prompt is read before the first token
        chunks = [self.progress(self._answer)] if self._answer else []
        logprobs = self._logprobs(list(delta.logprobs)) if delta.logprobs else None
        for changed in self._deltas.of(choice, events):
            chunks.append(self._chunk(choice, changed, logprobs))
            logprobs = None
        # also of tokens whose text is not certain yet
        if logprobs is not None or delta.round is not None:
            more = (
                {"speculation": delta.round.as_json()}
                if delta.round is not None
                else {}
            )
            chunks.append(self._chunk(choice, {"content": ""}, logprobs, more=more))
        if choice.ended:
            chunks.append(self._chunk(choice, {}, None, choice.finish_reason))
        return b"".join(chunks)

    def ping(self) -> bytes:
        """Return a chunk that changes nothing: clients count no comments."""
        if self._answer is None:
            return super().ping()
        return self._chunk(self._answer.choices[0], {})

    def progress(self, answer: Answer) -> bytes:
        """Return llama.cpp's chunk of the prompt tokens read, if there are more."""
        if not self._shows_progress:
            return b""
        read = answer.prompt_tokens_read
        if read <= self._read:
            return b""
        self._read = read
        about = {
            "total": answer.prompt_tokens,
            "cache": answer.cached_tokens,
            "processed": read,
            "time_ms": round(1000 * (perf_counter() - answer.arrived)),
        }
        return event({**self._base, "choices": [], "prompt_progress": about})

    def _chunk(
        self,
        choice: Choice,
        changed: dict[str, Any],
        logprobs: dict[str, Any] | None = None,
        reason: str | None = None,
        more: Mapping[str, Any] = MappingProxyType({}),
    ) -> bytes:
        written = {
            "index": choice.index,
            "delta": changed,
            "logprobs": logprobs,
            "finish_reason": reason,
            **more,
        }
        if reason is not None:
            written |= {
                "stop_reason": choice.request.stop_reason,
                "seed": choice.request.seed,
                **(recording(self._answer, choice) if self._answer else {}),
            }
        extra: dict[str, Any] = {"usage": None} if self._options.include_usage else {}
        if self._answer is not None and self._options.continuous_usage_stats:
            extra["usage"] = self._usage(self._answer)
        if (
            self._answer is not None
            and reason is not None
            and all(one.ended for one in self._answer.choices)
        ):
            extra |= measured(self._answer)
        return event({**self._base, "choices": [written], **extra})
