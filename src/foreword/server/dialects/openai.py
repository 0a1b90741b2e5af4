"""Provides what chat completions and completions of OpenAI have in common: the head of
every object, the options of a stream, and how a stream ends.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, ClassVar, Protocol, runtime_checkable

from pydantic import BaseModel, ConfigDict

from foreword import __version__
from foreword.server.answer import Answer
from foreword.server.dialects.base import Dialect
from foreword.server.dialects.common import (
    TokenTexts,
    fingerprint,
    measured,
    new_id,
    usage,
)
from foreword.server.dialects.translate import Translator
from foreword.server.errors import ApiError
from foreword.server.wire import event

DONE = b"data: [DONE]\n\n"
"""Last event of a stream."""


class StreamOptions(BaseModel):
    """What a stream holds beside the text."""

    model_config = ConfigDict(extra="allow")

    include_usage: bool = False
    continuous_usage_stats: bool = False
    include_speculation: bool = False


@runtime_checkable
class Streamed(Protocol):
    """Fields of a body that say how its answer is written."""

    stream_options: StreamOptions | None
    prediction: Any


def trace_of(body: Streamed) -> bool | None:
    """Return whether the rounds are traced; None leaves it to the server."""
    options = body.stream_options
    return True if options and options.include_speculation else None


class OpenAIDialect(Dialect):
    """An answer as OpenAI's objects: one whole, or chunks of the same head."""

    WHOLE: ClassVar[str]
    """Kind of a complete answer."""
    CHUNK: ClassVar[str]
    """Kind of the parts of a stream."""
    PREFIX: ClassVar[str]
    """Start of an answer's id."""
    HEAD: ClassVar[Mapping[str, Any]] = MappingProxyType({})
    """Constant fields of the head."""

    def __init__(self, body: Streamed, translator: Translator) -> None:
        self._options = body.stream_options or StreamOptions()
        self._predicted = body.prediction is not None
        self._texts = TokenTexts(translator.tokenizer)
        self._print = fingerprint(translator.name, translator.dtype, __version__)
        self._id = new_id(self.PREFIX)
        self._base: dict[str, Any] = {}
        """Head of every chunk, once the stream has begun."""
        self._answer: Answer | None = None

    def _head(self, answer: Answer, kind: str) -> dict[str, Any]:
        return {
            "id": self._id,
            "object": kind,
            "created": answer.created,
            "model": answer.call.model,
            **self.HEAD,
            "system_fingerprint": self._print,
        }

    def _usage(self, answer: Answer) -> dict[str, Any]:
        return usage(answer, predicted=self._predicted)

    def _whole(self, answer: Answer, choices: list[dict[str, Any]]) -> dict[str, Any]:
        """Return a complete answer of these choices."""
        return {
            **self._head(answer, self.WHOLE),
            "choices": choices,
            "usage": self._usage(answer),
            **measured(answer),
        }

    def _begin(self, answer: Answer) -> None:
        self._answer = answer
        self._base = self._head(answer, self.CHUNK)

    def end(self, answer: Answer) -> bytes:
        """Return the chunk of usage, if asked for, and the end of the stream."""
        options = self._options
        if not (options.include_usage or options.continuous_usage_stats):
            return DONE
        last = {
            **self._base,
            "choices": [],
            "usage": self._usage(answer),
            **measured(answer),
        }
        return event(last) + DONE

    def failed(self, error: ApiError) -> bytes:
        """Return the event of an error in a stream."""
        return event(error.body("")) + DONE
