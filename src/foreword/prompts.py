"""What a prompt may be: a text or a list of token ids, one or many; and a chat. Knows kinds of values, no tokenizer."""

from __future__ import annotations

import re
import reprlib
import warnings
from collections.abc import Callable, Mapping
from collections.abc import Sequence as List
from numbers import Integral
from typing import TypeGuard, cast

from foreword.errors import InvalidRequest

ROLES = ("system", "user", "assistant")
"""Roles that templates know without naming them."""
MARK = "foreword-mark"
"""A content that can be found again in what a template makes of it."""
Prompt = str | List[int]
"""Text, or its token ids."""


def listed(prompts: Prompt | List[Prompt]) -> List[Prompt]:
    """All prompts, where one may have been given without a list around it."""
    if isinstance(prompts, str) or (is_list(prompts) and prompts and all(isinstance(p, Integral) for p in prompts)):
        return [cast("Prompt", prompts)]
    if not is_list(prompts):
        raise _refusal(prompts)
    return cast("List[Prompt]", prompts)


def token_ids(prompt: object) -> list[int]:
    """Token ids as plain ints; those of numpy are welcome in a list."""
    if not is_list(prompt) or not all(isinstance(token, Integral) and not isinstance(token, bool) for token in prompt):
        raise _refusal(prompt)
    return [int(token) for token in cast("List[int]", prompt)]


def turns(messages: object) -> list[dict[str, str]]:
    """The messages of a conversation, copied; what else must be in them, its chat template knows."""
    if not is_list(messages) or not messages or not all(isinstance(message, Mapping) for message in messages):
        shown = reprlib.repr(messages)
        raise InvalidRequest(f'a chat is a list of messages, {{"role": "user", "content": "…"}} each, not {shown}')
    given = [dict(message) for message in cast("List[Mapping[str, str]]", messages)]
    for number, message in enumerate(given, 1):
        said: object = message.get("content")
        if not isinstance(said, str) and not (said is None and "tool_calls" in message):
            raise InvalidRequest(f"cannot render message {number}: content must be a string, not {reprlib.repr(said)}")
        if not isinstance(message.get("role"), str):
            raise InvalidRequest(f"cannot render message {number}: role must be a string, such as 'user'")
    return given


def known_roles(messages: List[Mapping[str, str]], template: str, render: Callable[..., object]) -> None:
    """Refuse messages of a role that the chat template leaves out; warn where it has no words of its own for one.

    `template` is its source, `render` is `apply_chat_template`. It knows the roles that it names in comparisons.
    """
    named = re.findall(r"""role(?:['"]\]|\b)\s*(?:==|!=|in)\s*[\[(]?\s*((?:['"]\w+['"][\s,]*)+)""", template)
    known = {*ROLES, *(role for some in named for role in re.findall(r"\w+", some))}
    for role in sorted({message["role"] for message in messages} - known):
        names = ", ".join(sorted(known))
        tried = [{"role": "user", "content": "x"}, {"role": role, "content": MARK}]
        try:
            shown = MARK in str(render(tried, tokenize=False))
        except Exception:  # noqa: BLE001 - a template that refuses a role says so itself when it is asked
            continue
        if not shown:
            raise InvalidRequest(f"the chat template leaves out messages of the role {role!r}; it knows {names}")
        warnings.warn(f"the chat template does not name the role {role!r}; it knows {names}", stacklevel=4)


def is_list(value: object) -> TypeGuard[List[object]]:
    """A list or a tuple, but no text."""
    return isinstance(value, List) and not isinstance(value, str | bytes | bytearray)


def _refusal(prompt: object) -> InvalidRequest:
    shown = reprlib.repr(prompt)
    return InvalidRequest(
        f"a prompt is a text or a list of token ids (whole numbers), not {type(prompt).__name__}: {shown}"
    )
