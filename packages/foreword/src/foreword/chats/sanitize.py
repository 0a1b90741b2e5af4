"""Marks control tokens in what users and tools wrote as plain text.

The mechanism is that of `apply_chat_template(sanitize_control_tokens=True)`, which
marks the messages of all roles. Here an assistant's are left out: its own tags, such as
its reasoning tags, would become other tokens than it generated.
"""

from collections.abc import Sequence
from typing import Any

from foreword.chats.messages import SYSTEM, Turn
from foreword.errors import InvalidRequest

TRUSTED = (*SYSTEM, "assistant")
"""Roles whose control tokens stay tokens."""
MARK = "_mark_chat_inputs"
"""Method of tokenizers that marks strings."""


def check_sanitizing(tokenizer: object) -> None:
    """Raise InvalidRequest if this version of transformers marks no control tokens."""
    if not hasattr(tokenizer, MARK):
        raise InvalidRequest(
            "cannot make control tokens plain text: this version of transformers does "
            "not. Run: pip install -U transformers, or leave '--sanitize' out"
        )


def marked(turns: Sequence[Turn], tokenizer: Any, template: str) -> list[Turn]:
    """Return the turns with marks around the control tokens in the contents of users
    and tools.

    Turns without control tokens are returned as they are, so their prompt has the same
    tokens as without this.
    """
    place_of = [
        place for place, turn in enumerate(turns) if turn["role"] not in TRUSTED
    ]
    contents = [turns[place]["content"] for place in place_of]
    mark = getattr(tokenizer, MARK)
    [marked_contents], *_ = mark(
        template, [contents], None, None, {}, tokenize=True, assistant_mask=False
    )
    shown = dict(zip(place_of, marked_contents, strict=True))
    return [
        {**turn, "content": shown.get(place, turn["content"])}
        for place, turn in enumerate(turns)
    ]
