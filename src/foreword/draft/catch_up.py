"""Reads what a draft model has not read of a sequence yet, in chunks."""

from __future__ import annotations

from collections.abc import Callable

from foreword.model import Read
from foreword.types import Request

CHUNK = 512
"""Tokens. Longest forward over a long text, which bounds its memory."""
ROOM = 256
"""Cache positions reserved beyond a sequence for draft tokens."""


def capacity(sequence: Request) -> int:
    """Return the cache positions that a sequence and its draft tokens can need."""
    return sequence.prompt + sequence.params.max_tokens + ROOM


def catch_up(
    id: int, past: int, tokens: list[int], read: Callable[[Read], object]
) -> Read:
    """Pass chunks of `tokens`, which stand from position `past` on, to `read` until at
    most one is left; return that one, whose logits predict the next token.
    """
    first = 0
    while len(tokens) - first > CHUNK:
        read(Read(id, past + first, tokens[first : first + CHUNK], keep=0))
        first += CHUNK
    return Read(id, past + first, tokens[first:])
