"""Messages of a conversation, checked, in the shape that chat templates share."""

import json
import reprlib
from collections.abc import Callable, Mapping, Sequence
from itertools import chain
from typing import Any, cast

from foreword.chats.cut_calls import CutArguments, cut_arguments
from foreword.chats.foreign import UNSEEN, as_text
from foreword.chats.images import MOST_IMAGES, is_image
from foreword.chats.prompts import check_texts, is_list
from foreword.errors import InvalidRequest

Message = Mapping[str, object]
"""{"role": "user", "content": "…"} of OpenAI's chat API; content may be parts."""
Parts = list[dict[str, object]]
"""Content of a checked message: its texts and images, in order."""
Turn = dict[str, Any]
"""A checked message: content is a string, or a list of parts if it has images;
arguments of calls are dicts.
"""
SYSTEM = ("system", "developer")
BELOW = "[its image follows]"
"""End of the text of a tool's result with images."""
UNSEEN_PART = {"type": "text", "text": UNSEEN}
OLD_PART = {"type": "text", "text": "[an earlier image]"}
PLAIN = (None, "text", "refusal")
"""Kinds of parts that are text."""


ImageReader = Callable[[object], object]
"""A part of a message that is an image -> the picture."""


def conversation(messages: object, image: ImageReader | None = None) -> list[Turn]:
    """Return a copy of a conversation's messages, checked. Raises InvalidRequest with
    the number of a wrong one.

    With `image`, users' messages may hold images: their content is then a list of
    parts. Images in a tool's result follow it in a message of the user, as templates
    have no place for them; without `image` a line of text stands for each.
    """
    if (
        not is_list(messages)
        or not messages
        or not all(isinstance(message, Mapping) for message in messages)
    ):
        value = reprlib.repr(messages)
        raise InvalidRequest(
            f'cannot read this chat: a chat is a list of messages {{"role": "user", '
            f'"content": "…"}}, not {value}'
        )
    turns: list[Turn] = []
    names: dict[object, str] = {}
    shown: Parts = []
    recent = _recent(cast("Sequence[Message]", messages))
    for number, message in enumerate(recent, 1):
        content: str | Parts = _content(number, message, image)
        if message.get("role") == "tool":
            content, images = _result(content)
            shown += images
        elif shown:
            content = _with_images(shown, message, content, turns)
            shown = []
        turn: Turn = {**message, "content": content}
        if not isinstance(message.get("role"), str):
            raise InvalidRequest(
                f"cannot render message {number}: role must be a string, such as 'user'"
            )
        check_texts("a message", message)
        if not isinstance(message.get("tool_call_id", ""), str):
            raise InvalidRequest(
                f"cannot render message {number}: tool_call_id must be a string"
            )
        calls = message.get("tool_calls")
        if calls:
            turn["tool_calls"] = _calls(number, calls)
            names |= {
                call.get("id"): call["function"]["name"] for call in turn["tool_calls"]
            }
        else:
            turn.pop("tool_calls", None)
        if (
            turn["role"] == "tool"
            and "name" not in turn
            and turn.get("tool_call_id") in names
        ):
            # some templates name the function of a result
            turn["name"] = names[turn["tool_call_id"]]
        turns.append(turn)
    return [*turns, {"role": "user", "content": shown}] if shown else turns


def _recent(messages: Sequence[Message]) -> Sequence[Message]:
    """Return the messages with a text for the oldest images of tools, if there are more
    images than one prompt may have: a long thread goes on.
    """
    contents = [message.get("content") for message in messages]
    lists = [content for content in contents if is_list(content)]
    beyond = sum(map(is_image, chain.from_iterable(lists))) - MOST_IMAGES
    if beyond <= 0:
        return messages
    recent: list[Message] = []
    for message in messages:
        content = message.get("content")
        if message.get("role") == "tool" and is_list(content):
            parts: list[object] = []
            for part in content:
                is_old = is_image(part) and beyond > 0
                beyond -= is_old
                parts.append(OLD_PART if is_old else part)
            message = {**message, "content": parts}
        recent.append(message)
    return recent


def _result(content: str | Parts) -> tuple[str, Parts]:
    """Return the text of a tool's result, and its images, which follow it."""
    if isinstance(content, str):
        return content, []
    images = [part for part in content if part["type"] == "image"]
    texts = [str(part["text"]) for part in content if part["type"] == "text"]
    if images:
        texts.append(BELOW)
    return "\n".join(filter(None, texts)), images


def _with_images(
    images: Parts, message: Message, content: str | Parts, turns: list[Turn]
) -> str | Parts:
    """Return the content of the message after a tool's results: images that they held
    come first if it is the user's; else a message of their own is added to `turns`.
    """
    if message.get("role") != "user":
        turns.append({"role": "user", "content": images})
        return content
    if isinstance(content, str):
        content = [{"type": "text", "text": content}]
    return [*images, *content]


def system_first(turns: Sequence[Turn], more: Sequence[str] = ()) -> list[Turn]:
    """Return the turns, all system messages and `more` texts first, as one."""
    texts = [turn["content"] for turn in turns if turn["role"] in SYSTEM] + [*more]
    rest = [turn for turn in turns if turn["role"] not in SYSTEM]
    return (
        [{"role": "system", "content": "\n\n".join(filter(None, texts))}, *rest]
        if texts
        else rest
    )


def images_of(turns: Sequence[Turn]) -> int:
    """Return the number of images in a conversation."""
    contents = [turn["content"] for turn in turns]
    lists = [content for content in contents if isinstance(content, list)]
    return sum(part["type"] == "image" for part in chain.from_iterable(lists))


def _content(number: int, message: Message, image: ImageReader | None) -> str | Parts:
    """Return a message's text; an assistant's may have none, as it called a tool."""
    content = message.get("content")
    if content is None and message.get("role") == "assistant":
        content = message.get("refusal") or ""
    if isinstance(content, str):
        return content
    if not is_list(content):
        raise InvalidRequest(
            f"cannot render message {number}: content must be a string, not "
            f"{reprlib.repr(content)}. A list of text parts is allowed too"
        )
    role = message.get("role")
    is_result = role == "tool"
    if is_result and image is None:
        content = [UNSEEN_PART if is_image(part) else part for part in content]
    if image is None or not any(map(is_image, content)):
        return "\n".join(_part(number, role, part) for part in content)
    if role not in ("user", "tool"):
        raise InvalidRequest(
            f"cannot render message {number}: a message of the role "
            f"{role!r} holds no images here. Put them into a user's "
            "message"
        )
    return [
        _image(part, image, _place(number, message), is_result=is_result)
        if is_image(part)
        else {"type": "text", "text": _part(number, role, part)}
        for part in content
    ]


def _place(number: int, message: Message) -> str:
    """Return where a message is: a tool's result is known by the id of its call, too,
    as APIs number items and blocks otherwise.
    """
    called = message.get("tool_call_id")
    if message.get("role") != "tool" or called is None:
        return f"message {number}"
    return f"message {number}, the result of the call {reprlib.repr(called)}"


def _image(
    part: object, image: ImageReader, origin: str, *, is_result: bool
) -> dict[str, object]:
    """Return an image as a part.

    One that a tool gave and that cannot be read, or not by this model, becomes a text:
    it stays in the history, so an error would come back with every later request. Only
    what its header tells is known here; the errors of its pixels name `origin`.
    """
    try:
        picture: Any = image(part)
    except InvalidRequest as error:
        if not is_result:
            raise InvalidRequest(f"cannot render {origin}: {error}") from error
        return {**UNSEEN_PART}
    if hasattr(picture, "decoded"):
        picture.place = origin
    return {"type": "image", "image": picture}


def _part(number: int, role: object, part: object) -> str:
    """Return the text of a part; what an assistant or a tool gave elsewhere in another
    kind of part is kept as text.
    """
    kind = part.get("type") if isinstance(part, Mapping) else None
    name = "refusal" if kind == "refusal" else "text"
    text = part.get(name) if isinstance(part, Mapping) else None
    if (
        isinstance(part, Mapping)
        and kind not in PLAIN
        and role in ("assistant", "tool")
    ):
        return as_text(part)
    if kind not in PLAIN:
        raise InvalidRequest(
            f"cannot render message {number}: a part of type {kind!r} is not served. "
            "Give text parts"
        )
    if kind is None or not isinstance(text, str):
        raise InvalidRequest(
            f'cannot render message {number}: a part of content must be {{"type": '
            f'"text", "text": "…"}}, '
            f"not {reprlib.repr(part)}"
        )
    return text


def _calls(number: int, calls: object) -> list[dict[str, Any]]:
    """Return a message's calls, arguments as dicts; of one cut off, what there is."""
    if not is_list(calls):
        raise InvalidRequest(
            f"cannot render message {number}: tool_calls must be a list, not "
            f"{reprlib.repr(calls)}"
        )
    return [_call(number, call) for call in calls]


def _call(number: int, call: object) -> dict[str, Any]:
    function = _function(call) if isinstance(call, Mapping) else None
    name = function.get("name") if isinstance(function, Mapping) else None
    if (
        not isinstance(call, Mapping)
        or not isinstance(function, Mapping)
        or not isinstance(name, str)
    ):
        form = (
            '{"id": …, "type": "function", "function": {"name": …, "arguments": "{…}"}}'
        )
        raise InvalidRequest(
            f"cannot render message {number}: a tool call is {form}, not "
            f"{reprlib.repr(call)}"
        )
    if not isinstance(call.get("id", ""), str):
        raise InvalidRequest(
            f"cannot render message {number}: the id of a tool call must be a string"
        )
    text = arguments = function.get("arguments")
    if isinstance(text, str) or text is None:
        try:
            arguments = json.loads(text or "{}")
        except (ValueError, RecursionError):
            arguments = cut_arguments(text or "")
    if isinstance(arguments, Mapping) and not isinstance(arguments, CutArguments):
        arguments = dict(arguments)
    if not isinstance(arguments, dict):
        raise InvalidRequest(
            f"cannot render message {number}: arguments of {name!r} must be the JSON "
            f"text of an object, not {reprlib.repr(text)}"
        )
    fields = {key: value for key, value in call.items() if key != "custom"}
    return {
        **fields,
        "type": "function",
        "function": {**function, "arguments": arguments},
    }


def _function(call: Mapping[str, object]) -> object:
    """Return the function that a call names; a free-form tool is one with an input."""
    custom = call.get("custom")
    if call.get("type") != "custom" or not isinstance(custom, Mapping):
        return call.get("function")
    return {"name": custom.get("name"), "arguments": {"input": custom.get("input")}}
