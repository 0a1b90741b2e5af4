"""Provides the translation of a request to a call: prompts as tokens, sampling parameters, and the output's parser."""

from __future__ import annotations

from collections.abc import Mapping
from collections.abc import Sequence as List
from types import MappingProxyType
from typing import Any, Protocol, runtime_checkable

from foreword.errors import ContextExceeded
from foreword.server.answer import Call
from foreword.server.dialects.fields import Prediction, Speculative, build, speculation
from foreword.server.output import PlainParser
from foreword.server.service import Service


@runtime_checkable
class Generating(Protocol):
    """A body that asks for generated text."""

    @property
    def model(self) -> str | None:
        """Name of the model, perhaps with a method as suffix."""
        ...

    @property
    def speculative(self) -> Speculative | None:
        """How to draft."""
        ...

    @property
    def prediction(self) -> Prediction | None:
        """Text that the answer will probably contain."""
        ...

    def sampling(self, **own: Any) -> dict[str, Any]:
        """Return the keyword arguments of SamplingParams."""
        ...


class Translator:
    """Translator of one request of one tenant. Runs in the thread of texts."""

    def __init__(self, service: Service, tenant: str) -> None:
        self._service, self._tenant = service, tenant
        self.tokenizer, self.name = service.tokenizer, service.name
        self.dtype = str(service.llm.target.dtype).removeprefix("torch.")

    def chat(
        self,
        body: Generating,
        messages: List[dict[str, Any]],
        *,
        max_tokens: int | None,
        stream: bool = False,
        sampling: Mapping[str, Any] = MappingProxyType({}),
    ) -> Call:
        """Return the call of a conversation. `sampling`: parameters that the API names otherwise, or None."""
        prompt = self.render(messages)
        return self.text(body, [prompt], max_tokens=max_tokens, stream=stream, sampling=sampling)

    def render(self, messages: List[dict[str, Any]]) -> list[int]:
        """Return the prompt of a conversation."""
        return self._service.requests.render(messages)

    def text(
        self,
        body: Generating,
        prompts: list[list[int]],
        *,
        max_tokens: int | None,
        stream: bool = False,
        scored: int | None = None,
        sampling: Mapping[str, Any] = MappingProxyType({}),
    ) -> Call:
        """Return the call of prompts. `max_tokens` None: what the context still holds; 0: only scores."""
        name, suffix = self._service.resolve(body.model)
        drafting = speculation(body.speculative, suffix, body.prediction is not None)
        longest = max(map(len, prompts))
        room = self._service.context - longest
        if room < 1:
            raise ContextExceeded(
                f"cannot run this request: the prompt has {longest} tokens and this server's context is "
                f"{self._service.context}, with room for an answer. Shorten the prompt"
            )
        # A longer answer could not be given either way, and clients ask for their usual model's limit.
        limit = min(max_tokens or room, room)
        own = {**sampling, "max_tokens": limit, "tenant": self._tenant, **drafting}
        params = build(body.sampling(**own))
        return Call(
            prompts=prompts,
            params=params,
            model=name,
            method=params.method or self._service.llm.method,
            parser=PlainParser,
            stream=stream,
            scored=scored,
            generates=max_tokens != 0,
        )
