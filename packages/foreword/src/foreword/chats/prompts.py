"""Checks of prompts: a prompt is a text or a list of token ids, one or many.

Arrays and tensors count as lists. A tokenizer's output counts as the ids in it, without
padding.
"""

import reprlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from numbers import Integral
from typing import Any, TypeGuard, TypeVar, cast

from torch import Tensor

from foreword.errors import InvalidRequest, check_unicode

DEPTH = 200
"""Levels of nesting in a message or a tool: more than any has, less than a stack."""


@dataclass(frozen=True, slots=True, eq=False)
class ImagePrompt:
    """A prompt with images, as `LLM.render` returns it; its length counts tokens."""

    tokens: list[int]
    tensors: Mapping[str, Tensor]
    """What the processor made of the images, by argument of the model."""
    placeholder: int
    """Id of the tokens that images replace."""
    digest: bytes
    """Identifies the images."""

    def __len__(self) -> int:
        return len(self.tokens)


Rendered = list[int] | ImagePrompt
"""Token ids of a chat, with its images where it has some."""
Prompt = str | Sequence[int] | Mapping[str, object] | ImagePrompt
"""Text, or its token ids, or {"prompt": text, "images": list}, or a rendered chat."""
P = TypeVar("P")
"""Parameters of a prompt, or None."""


def ids_of(prompt: Rendered) -> list[int]:
    """Return the token ids of a prompt."""
    return prompt.tokens if isinstance(prompt, ImagePrompt) else prompt


def listed(prompts: Prompt | Sequence[Prompt]) -> Sequence[Prompt]:
    """Return a list of prompts, also for a single prompt without a list."""
    if isinstance(prompts, ImagePrompt) or has_images(prompts):
        return [prompts]
    prompts = cast("Prompt | Sequence[Prompt]", _lists(prompts))
    if isinstance(prompts, str):
        return [_text(prompts)]
    if is_list(prompts) and prompts and all(isinstance(p, Integral) for p in prompts):
        return [cast("Prompt", prompts)]
    if not is_list(prompts):
        raise _invalid_prompt(prompts)
    return [
        _text(prompt) if isinstance(prompt, str) else prompt
        for prompt in cast("Sequence[Prompt]", prompts)
    ]


def has_images(prompt: object) -> TypeGuard[Mapping[str, object]]:
    """Return whether a prompt is {"prompt": text, "images": list}."""
    return isinstance(prompt, Mapping) and "images" in prompt


def per_prompt(
    prompts: Sequence[Prompt], params: P | Sequence[P]
) -> list[tuple[Prompt, P]]:
    """Return each prompt with its parameters. InvalidRequest for other lengths."""
    parameters = cast(
        "Sequence[P]", params if is_list(params) else [params] * len(prompts)
    )
    if len(parameters) != len(prompts):
        raise InvalidRequest(
            f"{len(prompts)} prompts need one set of parameters or {len(prompts)}, got "
            f"{len(parameters)}"
        )
    return list(zip(prompts, parameters, strict=True))


def token_ids(prompt: object) -> list[int]:
    """Return token ids as plain ints; numpy ints in a list are allowed."""
    prompt = _lists(prompt)
    if not is_list(prompt) or not all(
        isinstance(token, Integral) and not isinstance(token, bool) for token in prompt
    ):
        raise _invalid_prompt(prompt)
    return [int(token) for token in cast("Sequence[int]", prompt)]


def check_texts(name: str, value: object, depth: int = DEPTH) -> None:
    """Raise InvalidRequest for a string, however deep, that is not Unicode."""
    if not depth:
        raise InvalidRequest(
            f"cannot read {name}: it is nested in more than {DEPTH} levels. Make it "
            "flatter"
        )
    if isinstance(value, str):
        check_unicode(name, value)
    elif is_list(value) or isinstance(value, Mapping):
        items = value.items() if isinstance(value, Mapping) else value
        for part in items:
            check_texts(name, part, depth - 1)


def is_list(value: object) -> TypeGuard[Sequence[object]]:
    """Return whether a value is a list or tuple, not a string."""
    return isinstance(value, Sequence) and not isinstance(
        value, str | bytes | bytearray
    )


def _lists(value: object) -> object:
    """Convert arrays and tensors to lists and a tokenizer's output to its ids; return
    other values unchanged.
    """
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
        return [
            _unpadded(encoding, _lists(row), _lists(kept))
            for row, kept in zip(ids, mask, strict=True)
        ]
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


def is_several(messages: object) -> TypeGuard[Sequence[Sequence[Any]]]:
    """Return whether this is a list of conversations, not one of messages."""
    return (
        isinstance(messages, Sequence)
        and bool(messages)
        and isinstance(messages[0], Sequence)
        and not isinstance(messages[0], str)
    )


def check_one_answer(params: Any) -> None:
    """Raise InvalidRequest for parameters of several answers to one conversation."""
    several = getattr(params, "n", 1)
    if several > 1:
        raise InvalidRequest(
            f"cannot answer a chat with n={several} completions: chat returns one. Use "
            "generate(render(messages))"
        )
