"""Checks of prompts and chats: a prompt is a text or a list of token ids, one or many.

Arrays and tensors count as lists. A tokenizer's output counts as the ids in it, without padding.
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
"""Roles that every template supports, also those that do not name them."""
MARK = "foreword-mark"
"""Message content that marks whether a template renders a message."""
Prompt = str | List[int]
"""Text, or its token ids."""
P = TypeVar("P")
"""Parameters of a prompt, or None."""


def listed(prompts: Prompt | List[Prompt]) -> List[Prompt]:
    """Return a list of prompts, also for a single prompt without a list."""
    prompts = cast("Prompt | List[Prompt]", _lists(prompts))
    if isinstance(prompts, str):
        return [_text(prompts)]
    if is_list(prompts) and prompts and all(isinstance(p, Integral) for p in prompts):
        return [cast("Prompt", prompts)]
    if not is_list(prompts):
        raise _invalid_prompt(prompts)
    return [_text(prompt) if isinstance(prompt, str) else prompt for prompt in cast("List[Prompt]", prompts)]


def per_prompt(prompts: List[Prompt], params: P | List[P]) -> list[tuple[Prompt, P]]:
    """Return each prompt with its parameters: shared, or one per prompt. Raises InvalidRequest for other lengths."""
    parameters = cast("List[P]", params if is_list(params) else [params] * len(prompts))
    if len(parameters) != len(prompts):
        raise InvalidRequest(
            f"{len(prompts)} prompts need one set of parameters or {len(prompts)}, got {len(parameters)}"
        )
    return list(zip(prompts, parameters, strict=True))


def token_ids(prompt: object) -> list[int]:
    """Return token ids as plain ints; numpy ints in a list are allowed."""
    prompt = _lists(prompt)
    if not is_list(prompt) or not all(isinstance(token, Integral) and not isinstance(token, bool) for token in prompt):
        raise _invalid_prompt(prompt)
    return [int(token) for token in cast("List[int]", prompt)]


def turns(messages: object) -> list[dict[str, str]]:
    """Return a copy of a conversation's messages, with roles and contents checked."""
    if not is_list(messages) or not messages or not all(isinstance(message, Mapping) for message in messages):
        shown = reprlib.repr(messages)
        raise InvalidRequest(
            f'cannot read this chat: a chat is a list of messages {{"role": "user", "content": "…"}}, not {shown}'
        )
    copied = [dict(message) for message in cast("List[Mapping[str, str]]", messages)]
    for number, message in enumerate(copied, 1):
        content: object = message.get("content")
        empty = content is None and "tool_calls" in message
        if not isinstance(content, str) and not is_list(content) and not empty:  # some templates take a list of parts
            raise InvalidRequest(
                f"cannot render message {number}: content must be a string, not {reprlib.repr(content)}"
            )
        if not isinstance(message.get("role"), str):
            raise InvalidRequest(f"cannot render message {number}: role must be a string, such as 'user'")
        _check_texts(message)
    return copied


def known_roles(messages: List[Mapping[str, str]], template: str, render: Callable[..., object]) -> None:
    """Check the roles against the chat template. Raises InvalidRequest for a role that it leaves out.

    `template` is its source, `render` is `apply_chat_template`. Warns about a role that it renders but does not name
    in a comparison.
    """
    named = re.findall(r"""role(?:['"]\]|\b)\s*(?:==|!=|in)\s*[\[(]?\s*((?:['"]\w+['"][\s,]*)+)""", template)
    role_names = {*ROLES, *(role for some in named for role in re.findall(r"\w+", some))}
    for role in sorted({message["role"] for message in messages} - role_names):
        names = ", ".join(sorted(role_names))
        probe = [{"role": "user", "content": "x"}, {"role": role, "content": MARK}]
        try:
            rendered = MARK in str(render(probe, tokenize=False))
        except Exception:  # noqa: BLE001 - the template raises again when the chat is rendered
            continue
        if not rendered:
            raise InvalidRequest(f"the chat template leaves out messages of the role {role!r}; it knows {names}")
        warnings.warn(f"the chat template does not name the role {role!r}; it knows {names}", stacklevel=4)


def _check_texts(value: object) -> None:
    """Check every string in a message, also nested ones."""
    if isinstance(value, str):
        check_unicode("a message", value)
    elif is_list(value):
        for part in value:
            _check_texts(part)
    elif isinstance(value, Mapping):
        for part in value.values():
            _check_texts(part)


def is_list(value: object) -> TypeGuard[List[object]]:
    """Return whether a value is a list or tuple, not a string."""
    return isinstance(value, List) and not isinstance(value, str | bytes | bytearray)


def _lists(value: object) -> object:
    """Convert arrays and tensors to lists and a tokenizer's output to its ids; return other values unchanged."""
    if isinstance(value, Mapping):
        ids, mask = _lists(value.get("input_ids")), _lists(value.get("attention_mask"))
        return ids if mask is None else _unpadded(value, ids, mask)
    if hasattr(value, "shape") and hasattr(value, "tolist"):
        return cast("Tensor", value).tolist()
    return value


def _unpadded(encoding: object, ids: object, mask: object) -> list[object]:
    """Return the ids that the attention mask keeps, of one text or several."""
    if not (is_list(ids) and is_list(mask) and len(ids) == len(mask)):
        raise _invalid_prompt(encoding)
    if any(map(is_list, mask)):
        return [_unpadded(encoding, _lists(row), _lists(kept)) for row, kept in zip(ids, mask, strict=True)]
    if not all(kept in (0, 1) for kept in mask):
        raise _invalid_prompt(encoding)
    return [token for token, kept in zip(ids, mask, strict=True) if kept]


def _text(prompt: str) -> str:
    return check_unicode("a prompt", prompt)


def _invalid_prompt(prompt: object) -> InvalidRequest:
    shown = reprlib.repr(prompt)
    return InvalidRequest(
        "cannot read this prompt: a prompt is a text or a list of token ids (ints), "
        f"not {type(prompt).__name__}: {shown}"
    )
