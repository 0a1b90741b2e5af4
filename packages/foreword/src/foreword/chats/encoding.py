"""Encodes a rendered chat as token ids; control tokens may be marked as plain text."""

from collections.abc import Callable, Sequence
from typing import Any

from foreword.chats.prompts import Rendered

PLAIN = {"sanitize_control_tokens": True}
"""Option of transformers' tokenizers and processors: control tokens are marked
(foreword.chats.sanitize).
"""


def encoded(
    tokenizer: Any,
    turns: Sequence[Any],
    *,
    like_processor: bool,
    plain: bool = False,
    **options: Any,
) -> list[int]:
    """Return the token ids of a chat without images.

    `like_processor`: whether the model reads images; its processor begins a text with
    special tokens that the template leaves out. `plain`: whether control tokens are
    marked as plain text.
    """
    if not (plain or like_processor):
        return list(
            tokenizer.apply_chat_template(turns, return_dict=True, **options)[
                "input_ids"
            ]
        )
    text = tokenizer.apply_chat_template(turns, tokenize=False, **options)
    begun = tokenizer.bos_token is not None and text.startswith(tokenizer.bos_token)
    add = like_processor and not begun
    return list(
        tokenizer(text, add_special_tokens=add, **(PLAIN if plain else {}))["input_ids"]
    )


def encoded_images(
    encode: Callable[..., Rendered],
    turns: Sequence[Any],
    *,
    plain: bool = False,
    **options: Any,
) -> Rendered:
    """Return the token ids of a chat with images, by the `encode` of their processor;
    `plain` as for `encoded`.

    Processors add to the options that they are given.
    """
    return encode(
        turns, **options, **({"processor_kwargs": dict(PLAIN)} if plain else {})
    )
