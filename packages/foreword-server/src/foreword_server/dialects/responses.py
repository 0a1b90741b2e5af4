"""OpenAI's responses, used by agents such as Codex: POST /v1/responses, stateless."""

from collections.abc import Mapping
from time import time
from typing import Any, ClassVar, Literal

from foreword.errors import InvalidRequest
from foreword.types import Delta
from foreword_server.answer import Answer, Call, Choice, Shown
from foreword_server.dialects.base import Dialect
from foreword_server.dialects.common import measured, rounds
from foreword_server.dialects.constraints import constraint
from foreword_server.dialects.fields import Messages, Sampled, Tools
from foreword_server.dialects.response_items import choice_of, conversation_of
from foreword_server.dialects.response_output import Item, items_of, next_item
from foreword_server.dialects.response_tools import declared, echoed
from foreword_server.dialects.translate import Chat, Translator
from foreword_server.errors import ApiError
from foreword_server.output import Text
from foreword_server.wire import event


class ResponsesBody(Sampled):
    """A request for a response."""

    input: str | Messages
    instructions: str | None = None
    max_output_tokens: int | None = None
    stream: bool | None = None
    tools: Tools | None = None
    tool_choice: str | dict[str, Any] | None = None
    parallel_tool_calls: bool | None = None
    previous_response_id: str | None = None
    reasoning: dict[str, Any] | None = None
    text: dict[str, Any] | None = None
    truncation: Literal["auto", "disabled"] | None = None
    store: bool | None = None
    background: bool | None = None
    metadata: dict[str, Any] | None = None
    user: str | None = None

    LARGE: ClassVar[tuple[str, ...]] = ("input",)
    REFUSED: ClassVar[Mapping[str, str]] = {**Sampled.REFUSED, "prompt": "input"}
    ECHOED: ClassVar[tuple[str, ...]] = (
        "instructions",
        "max_output_tokens",
        "previous_response_id",
        "user",
    )
    """Fields that a response repeats as they came."""

    def check(self) -> None:
        """Raise ApiError 400 for what cannot be honoured."""
        self.check_extra()
        if self.previous_response_id:
            raise ApiError(
                400,
                "cannot continue 'previous_response_id': this server stores no "
                "responses. Send the whole input",
                param="previous_response_id",
                code="previous_response_not_found",
            )
        if self.background:
            raise ApiError(
                400,
                "cannot run in the background: this server stores no responses",
                param="background",
            )


class ResponsesDialect(Dialect):
    """How an answer is written as a response: one list of items."""

    def __init__(self, body: ResponsesBody, translator: Translator) -> None:
        self._body = body
        self._ids = translator.ids
        self._id = self._ids.new("resp_")
        self._count = 0
        self._items: list[Item] = []
        self._tools = declared(body.tools, body.input)
        self._answer: Answer | None = None

    @staticmethod
    def call(body: ResponsesBody, translator: Translator) -> Call:
        """Translate a body. Raises ApiError or InvalidRequest."""
        body.check()
        messages = conversation_of(body.input, body.instructions)
        if not messages:
            raise InvalidRequest(
                "cannot answer: the input is empty. Give a text or a list of items"
            )
        tools = declared(body.tools, body.input)
        effort = (body.reasoning or {}).get("effort")
        chat = Chat(
            messages=messages,
            tools=[tool.function for tool in tools.values()] or None,
            tool_choice=choice_of(body.tool_choice),
            parallel=body.parallel_tool_calls,
            drops_oldest=body.truncation == "auto",
            options={"reasoning_effort": effort} if effort else {},
        )
        sampling = constraint((body.text or {}).get("format"), body.model_extra)
        return translator.chat(
            body,
            chat,
            max_tokens=body.max_output_tokens,
            stream=bool(body.stream),
            sampling=sampling,
        )

    def whole(self, answer: Answer) -> dict[str, Any]:
        """Return the body of a complete answer."""
        choice = answer.choices[0]
        status = _status(choice)
        self._items = items_of(choice, self._tools, status, self._ids)
        return self._response(answer, status)

    def _response(self, answer: Answer, status: str) -> dict[str, Any]:
        body, choice = self._body, answer.choices[0]
        text = body.text or {}
        form = text.get("format") or {"type": "text"}
        params = answer.call.params
        done = status in ("completed", "incomplete")
        return {
            "id": self._id,
            "object": "response",
            "created_at": answer.created,
            "completed_at": int(time()) if status == "completed" else None,
            "status": status,
            "background": False,
            "error": None,
            "incomplete_details": {"reason": "max_output_tokens"}
            if status == "incomplete"
            else None,
            "model": answer.call.model,
            "output": [item.written for item in self._items],
            "parallel_tool_calls": body.parallel_tool_calls is not False,
            "temperature": params.temperature,
            "top_p": params.top_p,
            "presence_penalty": params.presence_penalty,
            "frequency_penalty": params.frequency_penalty,
            "top_logprobs": 0,
            "max_tool_calls": None,
            "text": {**text, "format": form},
            "tool_choice": body.tool_choice or "auto",
            "tools": list(map(echoed, body.tools or ())),
            "reasoning": {
                "effort": None,
                "summary": None,
                **(body.reasoning or {}),
            },
            "truncation": body.truncation or "disabled",
            "store": False,
            "service_tier": "default",
            "prompt_cache_key": None,
            "safety_identifier": None,
            "metadata": body.metadata or {},
            "seed": choice.request.seed,
            "usage": _usage(answer) if done else None,
            **{name: getattr(body, name) for name in body.ECHOED},
            **(measured(answer) | rounds(answer, choice) if done else {}),
        }

    def start(self, answer: Answer) -> bytes:
        """Return the events that open a response."""
        self._answer = answer
        opened = self._response(answer, "in_progress")
        return self._event("response.created", response=opened) + self._event(
            "response.in_progress", response=opened
        )

    def ping(self) -> bytes:
        """Return the event of a response in progress once more: Codex gives up after
        five minutes without one.
        """
        if self._answer is None:
            return super().ping()
        response = self._response(self._answer, "in_progress")
        return self._event("response.in_progress", response=response)

    def push(self, choice: Choice, events: list[Shown], delta: Delta) -> bytes:
        """Return the events of one delta."""
        written = b""
        for part in events:
            if not self._items or not self._items[-1].takes(part):
                written += self._close() + self._open(part)
            written += self._events(self._items[-1].push(part))
        if delta.round is not None:
            written += self._event(
                "response.speculation", speculation=delta.round.as_json()
            )
        return written

    def _open(self, part: Shown) -> bytes:
        self._items.append(next_item(part, self._tools, self._ids))
        return self._events(self._items[-1].opened())

    def _close(self, status: str = "completed") -> bytes:
        if not self._items:
            return b""
        return self._events(self._items[-1].closed(status))

    def _events(self, several: list[tuple[str, dict[str, Any]]]) -> bytes:
        index = len(self._items) - 1
        return b"".join(
            self._event(name, output_index=index, **fields) for name, fields in several
        )

    def _event(self, name: str, /, **fields: Any) -> bytes:
        data = {"type": name, "sequence_number": self._count, **fields}
        self._count += 1
        return event(data, name)

    def end(self, answer: Answer) -> bytes:
        """Return the events that close a response."""
        status = _status(answer.choices[0])
        written = b"" if self._items else self._open(Text(""))
        written += self._close(status)
        return written + self._event(
            f"response.{status}", response=self._response(answer, status)
        )

    def failed(self, error: ApiError) -> bytes:
        """Return the event of an error in a stream."""
        fault = {"code": "server_error", "message": str(error)}
        if self._answer is None:
            return self._event("error", param=None, **fault)
        return self._event(
            "response.failed",
            response={
                **self._response(self._answer, "failed"),
                "error": fault,
            },
        )


def _status(choice: Choice) -> str:
    return "incomplete" if choice.request.finish_reason == "length" else "completed"


def _usage(answer: Answer) -> dict[str, Any]:
    """Return the numbers of tokens read and written."""
    return {
        "input_tokens": answer.prompt_tokens,
        "input_tokens_details": {
            "cached_tokens": answer.cached_tokens,
            "cache_write_tokens": 0,
        },
        "output_tokens": answer.completion_tokens,
        "output_tokens_details": {"reasoning_tokens": answer.reasoning_tokens},
        "total_tokens": answer.prompt_tokens + answer.completion_tokens,
    }
