"""What a prompt may be: a text or a list of token ids, one or many; and a chat. Knows kinds of values, no tokenizer."""

from __future__ import annotations

import reprlib
from collections.abc import Mapping
from collections.abc import Sequence as List
from numbers import Integral
from typing import TypeGuard, TypeVar, cast

from foreword.errors import InvalidRequest

Prompt = str | List[int]
"""Text, or its token ids."""
P = TypeVar("P")
"""What goes with a prompt: parameters, or nothing."""


def listed(prompts: Prompt | List[Prompt]) -> List[Prompt]:
    """All prompts, where one may have been given without a list around it."""
    if isinstance(prompts, str) or (is_list(prompts) and prompts and all(isinstance(p, Integral) for p in prompts)):
        return [cast("Prompt", prompts)]
    if not is_list(prompts):
        raise _refusal(prompts)
    return cast("List[Prompt]", prompts)


def per_prompt(prompts: List[Prompt], params: P | List[P]) -> list[tuple[Prompt, P]]:
    """Each prompt with its parameters: those of all, or of a list its own. Raises InvalidRequest for other lengths."""
    wishes = cast("List[P]", params if is_list(params) else [params] * len(prompts))
    if len(wishes) != len(prompts):
        raise InvalidRequest(f"{len(prompts)} prompts need one set of parameters or {len(prompts)}, got {len(wishes)}")
    return list(zip(prompts, wishes, strict=True))


def token_ids(prompt: object) -> list[int]:
    """Token ids as plain ints; those of numpy are welcome in a list."""
    if not is_list(prompt) or not all(isinstance(token, Integral) and not isinstance(token, bool) for token in prompt):
        raise _refusal(prompt)
    return [int(token) for token in cast("List[int]", prompt)]


def turns(messages: object) -> list[dict[str, str]]:
    """The messages of a conversation, copied; what must be in them, its chat template knows."""
    if not is_list(messages) or not messages or not all(isinstance(message, Mapping) for message in messages):
        shown = reprlib.repr(messages)
        raise InvalidRequest(f'a chat is a list of messages, {{"role": "user", "content": "…"}} each, not {shown}')
    return [dict(message) for message in cast("List[Mapping[str, str]]", messages)]


def is_list(value: object) -> TypeGuard[List[object]]:
    """A list or a tuple, but no text."""
    return isinstance(value, List) and not isinstance(value, str | bytes | bytearray)


def _refusal(prompt: object) -> InvalidRequest:
    shown = reprlib.repr(prompt)
    return InvalidRequest(
        f"a prompt is a text or a list of token ids (whole numbers), not {type(prompt).__name__}: {shown}"
    )
