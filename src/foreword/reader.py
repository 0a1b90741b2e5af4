"""Tokens in, text out, one token at a time: whole characters only, and never a piece of a stop string.

Knows tokenizers; knows nothing about models, batches or how the tokens came to be.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from functools import partial
from typing import cast

from transformers import PreTrainedTokenizerBase

Decode = Callable[[list[int]], str]

REPLACEMENT = "\N{REPLACEMENT CHARACTER}"
"""What decoders write for bytes that are not, or not yet, a character."""


class TextReader:
    """The `Reader` of one completion.

    With `decode` the tokenizer's own, without clean-up of spaces, all pushes and `finish` together give
    `cut(decode(prompt + output)[len(decode(prompt)):], stop)`: the text that follows the prompt. For byte-level
    tokenizers this is `cut(decode(output), stop)`; tokenizers that drop the first space of a text keep the one between
    prompt and output. Where the prompt ends inside a character it is `cut(decode(output), stop)` for all of them.
    """

    __slots__ = ("_characters", "_stop", "_stopped")

    def __init__(
        self,
        tokenizer: PreTrainedTokenizerBase,
        prompt_tokens: list[int],
        stop: tuple[str, ...],
        skip_special_tokens: bool,
    ) -> None:
        decode = decoder(tokenizer, skip_special_tokens)
        self._characters = CharacterStream(decode, prompt_tokens, byte_tokens(tokenizer))
        self._stop = StopFilter(stop) if stop else None
        self._stopped = False

    def push(self, token: int) -> tuple[str, bool]:
        """Read one token. Returns the text that is now certain, and whether a stop string was completed.

        Pushing after a stop string was completed is a mistake of the caller: AssertionError.
        """
        assert not self._stopped, "a stop string has ended this text; push no more tokens"
        text = self._characters.push(token)
        if self._stop is None or not text:
            return text, False
        text, self._stopped = self._stop.push(text)
        return text, self._stopped

    def finish(self) -> str:
        """Returns what was held back: an unfinished character (as U+FFFD), or the beginning of a stop string."""
        if self._stopped:
            return ""
        text = self._characters.finish()
        return text if self._stop is None else self._stop.finish(text)


class CharacterStream:
    """Decodes a growing list of tokens; gives out a character when no later token can change it.

    Re-decodes a window: the tokens already given out last (`seen`, which tell the decoder that a text is going on) and
    those since. Work per token does not grow with the text, only with what is held back.
    """

    __slots__ = ("_bytes", "_decode", "_seen", "_shown", "_text", "_window")

    def __init__(self, decode: Decode, prompt: list[int], bytes_: Collection[int]) -> None:
        self._decode = decode
        self._bytes = bytes_
        self._window = prompt_tail(decode, prompt)
        self._text = decode(self._window)
        self._seen = len(self._window)
        """Tokens at the head of the window that are given out."""
        self._shown = len(self._text)
        """Characters at the head of the window's text that are given out."""

    def push(self, token: int) -> str:
        """Read one token; returns the characters that are now certain."""
        window = self._window
        window.append(token)
        before, self._text = self._text, self._decode(window)
        silent = self._text == before  # a special token that is skipped ends no run of bytes
        if silent or len(self._text) <= self._shown or self._text.endswith(REPLACEMENT) or token in self._bytes:
            return ""
        certain = self._text[self._shown :]
        del window[: self._seen]
        self._seen, self._text = len(window), self._decode(window)
        self._shown = len(self._text)
        return certain

    def finish(self) -> str:
        """Returns the characters held back, complete or not, and forgets them."""
        held = self._text[self._shown :]
        self._shown = len(self._text)
        return held


class StopFilter:
    """Lets text through up to the first stop string; holds back what may be the beginning of one."""

    __slots__ = ("_held", "_longest", "_stop")

    def __init__(self, stop: tuple[str, ...]) -> None:
        self._stop = stop
        self._longest = max(map(len, stop))
        self._held = ""

    def push(self, text: str) -> tuple[str, bool]:
        """Returns the text that may be shown, and whether a stop string ended it."""
        text = self._held + text
        end = first_stop(text, self._stop)
        self._held = "" if end is not None else text[len(text) - self._beginning(text) :]
        return (text[:end], True) if end is not None else (text[: len(text) - len(self._held)], False)

    def finish(self, text: str) -> str:
        """Returns the held text and `text`, up to the first stop string."""
        text, self._held = self._held + text, ""
        return text[: first_stop(text, self._stop)]

    def _beginning(self, text: str) -> int:
        """Length of the longest end of `text` that is the beginning of a stop string, and not yet all of it."""
        lengths = range(min(self._longest - 1, len(text)), 0, -1)
        return next((n for n in lengths if any(stop.startswith(text[-n:]) for stop in self._stop)), 0)


def first_stop(text: str, stop: tuple[str, ...]) -> int | None:
    """Where the stop string begins that is completed first; of those that end together, the longest. None without one.

    Completed first, not begun first: a reader must end at once, so only this does not depend on token borders.
    """
    found = ((text.find(word), word) for word in stop)
    ends = [(start + len(word), start) for start, word in found if start >= 0]
    return min(ends)[1] if ends else None


def cut(text: str, stop: tuple[str, ...]) -> str:
    """The plain definition of what a reader gives for a whole text: everything before the first stop string."""
    return text[: first_stop(text, stop)]


def decoder(tokenizer: PreTrainedTokenizerBase, skip_special_tokens: bool) -> Decode:
    """`tokenizer.decode` without clean-up of spaces; straight from the Rust tokenizer where there is one."""
    backend = getattr(tokenizer, "backend_tokenizer", None)
    if backend is not None:
        return partial(backend.decode, skip_special_tokens=skip_special_tokens)
    slow = partial(tokenizer.decode, skip_special_tokens=skip_special_tokens, clean_up_tokenization_spaces=False)
    return cast(Decode, slow)  # one list of tokens gives one text


def byte_tokens(tokenizer: PreTrainedTokenizerBase) -> frozenset[int]:
    """Ids of `<0x00>` to `<0xFF>`, where the tokenizer has them (SentencePiece byte fallback).

    A run of them is decoded as a whole: one wrong byte turns every byte of the run into U+FFFD, so no character of the
    run is certain before it ends.
    """
    unknown = (None, tokenizer.unk_token_id)
    if tokenizer.convert_tokens_to_ids("<0x00>") in unknown:
        return frozenset()
    ids = (tokenizer.convert_tokens_to_ids(f"<0x{byte:02X}>") for byte in range(256))
    return frozenset(id_ for id_ in ids if isinstance(id_, int) and id_ not in unknown)


def prompt_tail(decode: Decode, prompt: list[int]) -> list[int]:
    """The last tokens of the prompt, as many as are needed to show some text; none if they end inside a character."""
    size = 8
    while True:
        tail = prompt[-size:]
        text = decode(tail)
        whole = not text.endswith(REPLACEMENT)
        if (text and whole) or size >= len(prompt):
            return tail if whole else []
        size *= 2
