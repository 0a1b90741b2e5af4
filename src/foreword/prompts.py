"""What a prompt may be: a text or a list of token ids, one or many; and a chat. Knows kinds of values, no tokenizer.

Arrays and tensors are lists here, and what a tokenizer returns is the ids in it, without their padding.
"""

from __future__ import annotations

import re
import reprlib
import warnings
from collections.abc import Callable, Mapping
from collections.abc import Sequence as List
from numbers import Integral
from typing import TypeGuard, TypeVar, cast

from torch import Tensor

from foreword.errors import InvalidRequest, check_unicode

ROLES = ("system", "user", "assistant")
"""Roles that templates know without naming them."""
MARK = "foreword-mark"
"""A content that can be found again in what a template makes of it."""
Prompt = str | List[int]
"""Text, or its token ids."""
P = TypeVar("P")
"""What goes with a prompt: parameters, or nothing."""


def listed(prompts: Prompt | List[Prompt]) -> List[Prompt]:
    """All prompts, where one may have been given without a list around it."""
    prompts = cast("Prompt | List[Prompt]", _lists(prompts))
    if isinstance(prompts, str):
        return [_text(prompts)]
    if is_list(prompts) and prompts and all(isinstance(p, Integral) for p in prompts):
        return [cast("Prompt", prompts)]
    if not is_list(prompts):
        raise _refusal(prompts)
    return [_text(prompt) if isinstance(prompt, str) else prompt for prompt in cast("List[Prompt]", prompts)]


def per_prompt(prompts: List[Prompt], params: P | List[P]) -> list[tuple[Prompt, P]]:
    """Each prompt with its parameters: those of all, or of a list its own. Raises InvalidRequest for other lengths."""
    wishes = cast("List[P]", params if is_list(params) else [params] * len(prompts))
    if len(wishes) != len(prompts):
        raise InvalidRequest(f"{len(prompts)} prompts need one set of parameters or {len(prompts)}, got {len(wishes)}")
    return list(zip(prompts, wishes, strict=True))


def token_ids(prompt: object) -> list[int]:
    """Token ids as plain ints; those of numpy are welcome in a list."""
    prompt = _lists(prompt)
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
        empty = said is None and "tool_calls" in message
        if not isinstance(said, str) and not is_list(said) and not empty:  # some templates take a list of parts
            raise InvalidRequest(f"cannot render message {number}: content must be a string, not {reprlib.repr(said)}")
        if not isinstance(message.get("role"), str):
            raise InvalidRequest(f"cannot render message {number}: role must be a string, such as 'user'")
        _check_texts(message)
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


def _check_texts(value: object) -> None:
    """Check every text in a message, however deep."""
    if isinstance(value, str):
        check_unicode("a message", value)
    elif is_list(value):
        for part in value:
            _check_texts(part)
    elif isinstance(value, Mapping):
        for part in value.values():
            _check_texts(part)


def is_list(value: object) -> TypeGuard[List[object]]:
    """A list or a tuple, but no text."""
    return isinstance(value, List) and not isinstance(value, str | bytes | bytearray)


def _lists(value: object) -> object:
    """Arrays and tensors as lists, and the ids of what a tokenizer returned; anything else as it is."""
    if isinstance(value, Mapping):
        ids, mask = _lists(value.get("input_ids")), _lists(value.get("attention_mask"))
        return ids if mask is None else _unpadded(value, ids, mask)
    if hasattr(value, "shape") and hasattr(value, "tolist"):
        return cast("Tensor", value).tolist()
    return value


def _unpadded(encoding: object, ids: object, mask: object) -> list[object]:
    """The ids that the mask keeps, of one text or of several."""
    if not (is_list(ids) and is_list(mask) and len(ids) == len(mask)):
        raise _refusal(encoding)
    if any(map(is_list, mask)):
        return [_unpadded(encoding, _lists(row), _lists(kept)) for row, kept in zip(ids, mask, strict=True)]
    if not all(kept in (0, 1) for kept in mask):
        raise _refusal(encoding)
    return [token for token, kept in zip(ids, mask, strict=True) if kept]


def _text(prompt: str) -> str:
    return check_unicode("a prompt", prompt)


def _refusal(prompt: object) -> InvalidRequest:
    shown = reprlib.repr(prompt)
    return InvalidRequest(
        f"a prompt is a text or a list of token ids (whole numbers), not {type(prompt).__name__}: {shown}"
    )
