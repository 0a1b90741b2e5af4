"""Translates a request to a call: prompt tokens, sampling parameters, output parser."""

import json
from bisect import bisect_left
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from importlib.util import find_spec
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from foreword.api.requests import Requests
from foreword.chats import functions_of
from foreword.chats.messages import SYSTEM
from foreword.chats.prompts import Rendered, ids_of
from foreword.chats.templates import check_known_roles, template_of
from foreword.errors import ContextExceeded, InvalidRequest
from foreword.structured.rewrite import rewritten
from foreword.structured.schema import check_schema
from foreword.types.constraint import CONSTRAINTS
from foreword_server.answer import Call
from foreword_server.dialects.fields import Sampled, build, speculation
from foreword_server.dialects.ids import Ids
from foreword_server.errors import ApiError
from foreword_server.output import (
    Format,
    OutputParser,
    ReasoningTags,
    allowed_tools,
    format_of,
    has_special_tags,
    named_format,
    named_reasoning,
    reasoning_of,
    structural_tag,
)
from foreword_server.output.formats.base import Tag
from foreword_server.output.formats.grammar import json_text
from foreword_server.service import Named, Service

if TYPE_CHECKING:
    from foreword_server.dialects.messages import MessagesBody


def answer_form(sampling: Mapping[str, Any]) -> Tag | None:
    """Return the format, for xgrammar's structural tags, of the JSON that sampling
    parameters ask for; None if they ask for none.

    Raises InvalidRequest for a schema that cannot be followed.
    """
    if sampling.get("json_object"):
        return json_text({"type": "object"})
    value = sampling.get("json_schema")
    if not value:
        return None
    try:
        schema = json.loads(value) if isinstance(value, str) else value
    except (ValueError, RecursionError) as error:
        raise InvalidRequest(
            f"cannot follow this json_schema: it is not JSON: {error}. Correct it"
        ) from error
    schema = rewritten(schema)
    check_schema(schema)
    return json_text(schema)


ROOM = 8
"""A conversation that loses its oldest messages leaves an eighth of the context for the
answer."""
PREFILL = {"continue_final_message": True}
"""Option of a chat template with which the answer goes on with the last message."""
TAIL = 16
"""Tokens at the end of a prompt that may hold the tag that opens reasoning."""
NOTHING: Mapping[str, Any] = MappingProxyType({})


@dataclass(frozen=True, slots=True, kw_only=True)
class Chat:
    """A conversation, in the shape of OpenAI's chat API, and what its answer may be."""

    messages: list[dict[str, Any]]
    tools: Sequence[dict[str, Any]] | None = None
    tool_choice: object = "auto"
    parallel: bool | None = None
    """Whether the answer may call more than one tool; None: unless a call is forced,
    since a small model would call until its answer is cut off.
    """
    options: Mapping[str, Any] = field(default_factory=dict)
    """Options of the chat template."""
    drops_oldest: bool = False
    """Whether the oldest messages of a conversation that is too long are left out."""


class Translator:
    """Translator of one request of one tenant. Runs in a thread of texts."""

    def __init__(
        self, service: Service, tenant: str, requests: Requests, ids: Ids | None = None
    ) -> None:
        """`requests`: builder of this thread. `ids`: of the answer; None: random."""
        self._service = service
        self._tenant = tenant
        self.requests = requests
        self.tokenizer: Any = requests.tokenizer
        self.ids = Ids() if ids is None else ids
        self.name = service.name
        self.dtype = str(service.llm.target.dtype).removeprefix("torch.")

    def chat(
        self,
        body: "Sampled | MessagesBody",
        chat: Chat,
        *,
        max_tokens: int | None,
        stream: bool = False,
        sampling: Mapping[str, Any] = NOTHING,
    ) -> Call:
        """Return a conversation's call; `sampling`: what the API names otherwise."""
        if max_tokens == 0:
            raise ApiError(
                400,
                "max_tokens must be 1 or more, or left out, got 0",
                param="max_tokens",
            )
        prompt = self._shortened(chat) if chat.drops_oldest else self.render(chat)
        parser, constraint = self._output(chat, prompt, sampling)
        return self.text(
            body,
            [prompt],
            max_tokens=max_tokens,
            stream=stream,
            sampling={**sampling, **constraint},
            parser=parser,
        )

    def render(self, chat: Chat) -> Rendered:
        """Return the prompt of a conversation."""
        template = template_of(self.tokenizer.chat_template, tools=bool(chat.tools))
        check_known_roles(chat.messages, template)
        return self.requests.render(
            chat.messages, self._tools(chat), chat.options or None
        )

    def _shortened(self, chat: Chat) -> Rendered:
        """Return the prompt of a conversation with as many of its oldest messages left
        out as must be; system messages stay, and what a call returned goes with it.
        """
        system = [one for one in chat.messages if one.get("role") in SYSTEM]
        said = [one for one in chat.messages if one.get("role") not in SYSTEM]
        begins = [at for at, one in enumerate(said) if one.get("role") != "tool"]
        margin = self._service.context // ROOM

        def prompt(begin: int) -> Rendered | None:
            shorter = replace(chat, messages=[*system, *said[begin:]])
            try:
                tokens = self.render(shorter)
            except ContextExceeded:
                return None
            return tokens if self._service.room(len(tokens)) >= margin else None

        if (whole := prompt(0)) is not None:
            return whole
        fitting = bisect_left(begins, True, key=lambda begin: prompt(begin) is not None)
        if fitting == len(begins):
            return self.render(chat)  # it is refused as too long
        return prompt(begins[fitting]) or []

    @staticmethod
    def _tools(chat: Chat) -> Sequence[dict[str, Any]] | None:
        """Return the tools that the model is told of."""
        return None if chat.tool_choice == "none" else chat.tools or None

    def _output(
        self, chat: Chat, prompt: Rendered, sampling: Mapping[str, Any]
    ) -> tuple[Callable[[], OutputParser], dict[str, Any]]:
        """Return how the output is parsed, and the sampling parameters for that."""
        tools = self._tools(chat)
        template = template_of(self.tokenizer.chat_template, tools=bool(tools))
        style = self._tool_format(template) if tools else None
        tags = self._reasoning(template)
        functions = functions_of(tools)
        special = frozenset(self.tokenizer.all_special_tokens)
        opened = tags is not None and tags.opened_by(
            self.tokenizer.decode(ids_of(prompt)[-TAIL:])
        )
        parameters: dict[str, Any] = (
            {"skip_special_tokens": False}
            if has_special_tags(special, style, tags)
            else {}
        )
        mode, allowed = (
            allowed_tools(chat.tool_choice, functions) if functions else (None, ())
        )
        parallel = mode == "auto" if chat.parallel is None else chat.parallel
        if style is not None and _may_call(mode, sampling):
            tag = structural_tag(
                style,
                functions,
                chat.tool_choice,
                parallel=parallel,
                lazy=find_spec("xgrammar") is not None,
                reasoning=tags,
                in_reasoning=opened,
                special=special,
                answer=answer_form(sampling),
            )
            if tag is not None:
                parameters |= {**dict.fromkeys(CONSTRAINTS), "structural_tag": tag}
        parser = partial(
            OutputParser,
            style,
            allowed,
            reasoning=tags,
            in_reasoning=opened,
            parallel=parallel,
            forced=mode not in (None, "auto"),
            new_id=self.ids.call,
        )
        return parser, parameters

    def _tool_format(self, template: str | None) -> Format:
        """Return the format of calls: the one of the settings, else the template's."""
        named = self._service.settings.tool_format
        return named_format(named) if named else format_of(template)

    def _reasoning(self, template: str | None) -> ReasoningTags | None:
        """Return the tags of reasoning, from the settings or else the template."""
        named = self._service.settings.reasoning
        return named_reasoning(named) if named else reasoning_of(template)

    def text(
        self,
        body: "Sampled | MessagesBody",
        prompts: Sequence[Rendered],
        *,
        max_tokens: int | None,
        stream: bool = False,
        scored: int | None = None,
        sampling: Mapping[str, Any] = NOTHING,
        parser: Callable[[], OutputParser] = OutputParser,
    ) -> Call:
        """Return the call of prompts. `max_tokens` None: what fits; 0: only scores."""
        named = self._service.resolve(body.model)
        served = self._served(body, named)
        longest = max(map(len, prompts))
        room = self._service.room(longest)
        if room < 1:
            raise ContextExceeded(
                f"cannot run this request: the prompt has {longest} tokens and this "
                "server's context is "
                f"{self._service.context}, with room for an answer. Shorten the prompt",
                prompt=longest,
                limit=self._service.context - 1,
            )
        if max_tokens is not None and max_tokens < -1:
            raise ApiError(
                400,
                f"max_tokens must be 1 or more, -1 or left out, got {max_tokens}",
                param="max_tokens",
            )
        if max_tokens == -1:  # clients of llama.cpp send it for no limit
            max_tokens = None
        # A longer answer could not be given either way, and clients ask for their usual
        # model's limit.
        limit = min(max_tokens or room, room)
        arguments = {**sampling, "max_tokens": limit, **served}
        values = {**self._service.llm.sampling, **body.sampling(**arguments)}
        _, params = self.requests.read(prompts[0], build(values))
        return Call(
            prompts=prompts,
            params=params,
            model=named.name,
            method=params.method or self._service.llm.method,
            parser=parser,
            stream=stream,
            scored=scored,
            generates=max_tokens != 0,
        )

    def _served(self, body: "Sampled | MessagesBody", named: Named) -> dict[str, Any]:
        """Return for whom a request is answered, by which adapter, and how drafted."""
        predicted = body.prediction is not None
        drafting = speculation(body.speculative, named.method, predicted)
        return {"tenant": self._tenant, "adapter": named.adapter, **drafting}


def _may_call(mode: object, sampling: Mapping[str, Any]) -> bool:
    """Return whether an answer may hold calls: an expression or a grammar is the whole
    answer, unless a call is forced.
    """
    names = [name for name in CONSTRAINTS if sampling.get(name)]
    return mode != "auto" or not names or names in (["json_schema"], ["json_object"])
