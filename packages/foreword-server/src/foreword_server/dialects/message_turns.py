"""Conversations of Anthropic's messages: fields, and the turns as chat messages."""

import json
from typing import Any

from pydantic import Field

from foreword.chats import is_image
from foreword.chats.foreign import as_text
from foreword.errors import InvalidRequest
from foreword_server.dialects.client_tools import client_tool
from foreword_server.dialects.fields import Body, Messages, Tools
from foreword_server.dialects.translate import PREFILL, Chat

CHOICES = {"auto": "auto", "any": "required", "none": "none"}
"""Anthropic's tool choices -> OpenAI's."""
ROLES = ("user", "assistant", "system")
"""Claude Code puts system messages between the others too."""
BILLING = "x-anthropic-billing-header:"
"""Beginning of a system block that Claude Code sends to its host. It differs from
request to request, and as the first block it would make every prompt new to the cache;
it is not meant for the model."""


class CountBody(Body):
    """A conversation."""

    model: str | None = None
    messages: Messages = Field(min_length=1)
    system: str | Messages | None = None
    tools: Tools | None = None
    tool_choice: dict[str, Any] | None = None
    thinking: dict[str, Any] | None = None


def chat_of(body: CountBody) -> Chat:
    """Return the conversation as chat completions, or raise InvalidRequest."""
    choice, thinking = body.tool_choice or {}, (body.thinking or {}).get("type")
    messages = messages_of(body)
    options: dict[str, Any] = {}
    if thinking is not None:
        options["enable_thinking"] = thinking != "disabled"
    if messages[-1]["role"] == "assistant" and not messages[-1].get("tool_calls"):
        options |= PREFILL
    kind = choice.get("type", "auto")
    named = {"type": "function", "function": {"name": choice.get("name")}}
    single = choice.get("disable_parallel_tool_use")
    return Chat(
        messages=messages,
        tools=_tools(body.tools),
        tool_choice=named if kind == "tool" else CHOICES.get(str(kind), kind),
        parallel=None if single is None else not single,
        options=options,
    )


def _tools(tools: list[dict[str, Any]] | None) -> list[dict[str, Any]] | None:
    """Return the tools as functions, but for tools that only a hosted model has."""
    functions = [_function(tool) for tool in tools or ()]
    specs = [one for one in functions if one is not None]
    return [{"type": "function", "function": one} for one in specs] or None


def _function(tool: dict[str, Any]) -> dict[str, Any] | None:
    if "input_schema" not in tool:
        return client_tool(tool)
    keys = [name for name in ("name", "description", "strict") if name in tool]
    about = {name: tool[name] for name in keys}
    return {**about, "parameters": tool["input_schema"]}


def messages_of(body: CountBody) -> list[dict[str, Any]]:
    """Return the conversation as chat messages, or raise InvalidRequest."""
    messages: list[dict[str, Any]] = []
    if system := _text(body.system or "", "the system prompt"):
        messages.append({"role": "system", "content": system})
    for number, message in enumerate(body.messages, 1):
        content, role = message.get("content"), message.get("role")
        if role not in ROLES:
            raise InvalidRequest(
                f"cannot read message {number}: its role must be one of {ROLES}, not "
                f"{role!r}"
            )
        if isinstance(content, str):
            messages.append({"role": role, "content": content})
        elif isinstance(content, list) and all(
            isinstance(block, dict) for block in content
        ):
            messages += _turn(role, content, f"message {number}")
        else:
            raise InvalidRequest(
                f"cannot read message {number}: its content must be a string or a list "
                "of blocks"
            )
    return messages


def _turn(role: str, blocks: list[dict[str, Any]], where: str) -> list[dict[str, Any]]:
    """Return the messages of a turn: tool results first, then text with its calls."""
    messages: list[dict[str, Any]] = []
    calls: list[dict[str, Any]] = []
    texts: list[dict[str, Any]] = []
    for block in blocks:
        if block.get("type") == "tool_result":
            content = _content(block.get("content") or "", where)
            messages.append(
                {
                    "role": "tool",
                    "tool_call_id": block.get("tool_use_id"),
                    "content": content,
                }
            )
        elif block.get("type") == "tool_use":
            function = {
                "name": block.get("name"),
                "arguments": json.dumps(block.get("input") or {}),
            }
            calls.append(
                {"id": block.get("id"), "type": "function", "function": function}
            )
        elif block.get("type") not in ("thinking", "redacted_thinking"):
            texts.append(block)
    if texts or calls or not messages:
        content = _content(texts, where)
        messages.append(
            {
                "role": role,
                "content": content,
                **({"tool_calls": calls} if calls else {}),
            }
        )
    return messages


def _content(content: Any, where: str) -> str | list[dict[str, Any]]:
    """Return the content of a message: its text, or a list of parts with images."""
    if not isinstance(content, list) or not any(map(is_image, content)):
        return _text(content, where)
    return [
        block if is_image(block) else {"type": "text", "text": _words(block, where)}
        for block in content
    ]


def _text(content: Any, where: str) -> str:
    if isinstance(content, str):
        return content
    if not isinstance(content, list):
        raise InvalidRequest(
            f"cannot read {where}: its content must be a string or a list of blocks"
        )
    texts = [_words(block, where) for block in content]
    return "\n".join(text for text in texts if not text.startswith(BILLING))


def _words(block: Any, where: str) -> str:
    """Return the text of a block; one that a host's own tool made is written out."""
    kind = block.get("type") if isinstance(block, dict) else None
    if kind == "text" and isinstance(block.get("text"), str):
        return block["text"]
    if kind in (None, "text", "image"):
        kind = kind or type(block).__name__
        raise InvalidRequest(
            f"cannot read {where}: a block of type {kind!r} is not served. Send text "
            "or images"
        )
    return as_text(block)
