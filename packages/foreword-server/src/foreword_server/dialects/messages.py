"""Anthropic's messages API: POST /v1/messages and /v1/messages/count_tokens."""

import json
from typing import Any, ClassVar

from pydantic import Field

from foreword.types import Delta
from foreword_server.answer import Answer, Call, Choice, Shown
from foreword_server.dialects.base import Dialect
from foreword_server.dialects.common import measured, rounds, speculation
from foreword_server.dialects.constraints import constraint
from foreword_server.dialects.fields import Speculative, Stops, texts
from foreword_server.dialects.message_turns import CountBody, chat_of
from foreword_server.dialects.translate import Translator
from foreword_server.errors import ApiError
from foreword_server.output import Reasoning, Text, ToolArguments, ToolCall
from foreword_server.wire import event

STOPS = {"stop": "end_turn", "length": "max_tokens", "tool_calls": "tool_use"}
"""Our finish reasons -> Anthropic's."""


class MessagesBody(CountBody):
    """A request for a message."""

    max_tokens: int = Field(ge=1)
    stream: bool | None = None
    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    stop_sequences: Stops | None = None
    seed: int | None = None
    speculative: Speculative | None = None
    prediction: None = None
    output_config: dict[str, Any] | None = None
    output_format: dict[str, Any] | None = None

    PLAIN: ClassVar[tuple[str, ...]] = ("temperature", "top_p", "top_k", "seed")

    def sampling(self, **rest: Any) -> dict[str, Any]:
        """Return the keyword arguments of SamplingParams."""
        args = {
            name: getattr(self, name)
            for name in self.PLAIN
            if getattr(self, name) is not None
        }
        if self.stop_sequences:
            args["stop"] = texts(self.stop_sequences)
        return args | {name: value for name, value in rest.items() if value is not None}


class MessagesDialect(Dialect):
    """How an answer is written as a message: a list of content blocks."""

    def __init__(self, body: MessagesBody, translator: Translator) -> None:
        self._id = translator.ids.new("msg_")
        self._open: Shown | None = None
        """First event of the open block."""
        self._blocks = 0

    @staticmethod
    def call(body: MessagesBody, translator: Translator) -> Call:
        """Translate a body. Raises ApiError or InvalidRequest."""
        body.check_extra()
        form = (body.output_config or {}).get("format") or body.output_format
        sampling = constraint(form, body.model_extra)
        return translator.chat(
            body,
            chat_of(body),
            max_tokens=body.max_tokens,
            stream=bool(body.stream),
            sampling=sampling,
        )

    @staticmethod
    def count(body: CountBody, translator: Translator) -> int:
        """Return the number of tokens of the conversation as a prompt."""
        return len(translator.render(chat_of(body)))

    def whole(self, answer: Answer) -> dict[str, Any]:
        """Return the body of a complete answer."""
        choice = answer.choices[0]
        content: list[dict[str, Any]] = []
        if choice.reasoning:
            content.append(
                {"type": "thinking", "thinking": choice.reasoning, "signature": ""}
            )
        if choice.text or not choice.calls:
            content.append({"type": "text", "text": choice.text})
        content += [
            {
                "type": "tool_use",
                "id": one.id,
                "name": one.name,
                "input": _object(one.arguments),
            }
            for one in choice.calls
        ]
        head = {
            **self._message(answer),
            "content": content,
            **self._ending(answer),
            "usage": self._usage(answer),
        }
        return {
            **head,
            "metrics": {"speculative_decoding": speculation(answer)},
            **rounds(answer, choice),
        }

    def _message(self, answer: Answer) -> dict[str, Any]:
        empty = {
            "stop_reason": None,
            "stop_sequence": None,
            "usage": {**self._usage(answer), "output_tokens": 0},
        }
        head = {
            "id": self._id,
            "type": "message",
            "role": "assistant",
            "model": answer.call.model,
        }
        return {**head, "content": [], **empty}

    def _ending(self, answer: Answer) -> dict[str, Any]:
        choice = answer.choices[0]
        stop = choice.request.stop_reason
        word = stop if isinstance(stop, str) else None
        reason = "stop_sequence" if word is not None else STOPS[choice.finish_reason]
        return {"stop_reason": reason, "stop_sequence": word}

    def _usage(self, answer: Answer) -> dict[str, Any]:
        cached = answer.cached_tokens
        return {
            "input_tokens": answer.prompt_tokens - cached,
            "cache_read_input_tokens": cached,
            "cache_creation_input_tokens": 0,
            "output_tokens": answer.completion_tokens,
        }

    def start(self, answer: Answer) -> bytes:
        """Return the event that opens a message."""
        return event(
            {"type": "message_start", "message": self._message(answer)}, "message_start"
        )

    def push(self, choice: Choice, events: list[Shown], delta: Delta) -> bytes:
        """Return the events of one delta."""
        written = b""
        for part in events:
            if self._open is None or not _continues(self._open, part):
                written += self._close()
                self._open = part
                block = {
                    "type": "content_block_start",
                    "index": self._blocks,
                    "content_block": _block(part),
                }
                written += event(block, "content_block_start")
            if (changed := _changed(part)) is not None:
                data = {
                    "type": "content_block_delta",
                    "index": self._blocks,
                    "delta": changed,
                }
                written += event(data, "content_block_delta")
        if delta.round is not None:
            written += event(
                {"type": "speculation", "speculation": delta.round.as_json()},
                "speculation",
            )
        return written

    def _close(self) -> bytes:
        if self._open is None:
            return b""
        written = event(
            {"type": "content_block_stop", "index": self._blocks}, "content_block_stop"
        )
        self._open, self._blocks = None, self._blocks + 1
        return written

    def end(self, answer: Answer) -> bytes:
        """Return the events that close a message."""
        last = {
            "type": "message_delta",
            "delta": self._ending(answer),
            "usage": self._usage(answer),
            **measured(answer),
        }
        return (
            self._close()
            + event(last, "message_delta")
            + event({"type": "message_stop"}, "message_stop")
        )

    def ping(self) -> bytes:
        """Return Anthropic's own event for it."""
        return event({"type": "ping"}, "ping")

    def failed(self, error: ApiError) -> bytes:
        """Return the event of an error in a stream."""
        return event(error.body(anthropic=True), "error")


def _continues(opened: Shown, event: Shown) -> bool:
    """Whether an event belongs to the block that another one opened."""
    if isinstance(event, ToolArguments):
        return isinstance(opened, ToolCall) and opened.index == event.index
    return type(opened) is type(event) and not isinstance(event, ToolCall)


def _block(event: Shown) -> dict[str, Any]:
    match event:
        case ToolCall():
            return {"type": "tool_use", "id": event.id, "name": event.name, "input": {}}
        case Reasoning():
            return {"type": "thinking", "thinking": "", "signature": ""}
        case _:
            return {"type": "text", "text": ""}


def _changed(event: Shown) -> dict[str, Any] | None:
    match event:
        case Text(text):
            return {"type": "text_delta", "text": text}
        case Reasoning(text):
            return {"type": "thinking_delta", "thinking": text}
        case ToolArguments():
            return {"type": "input_json_delta", "partial_json": event.json}
        case ToolCall():
            return None


def _object(arguments: str) -> Any:
    """Return the JSON value of a call's arguments; {} for a call that was cut off."""
    try:
        return json.loads(arguments or "{}")
    except ValueError:
        return {}
