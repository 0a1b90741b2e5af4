"""Incremental detokenization: whole characters, never a part of a stop string."""

from collections.abc import Callable, Collection
from functools import partial
from typing import cast

from transformers import PreTrainedTokenizerBase

Decode = Callable[[list[int]], str]

REPLACEMENT = "\N{REPLACEMENT CHARACTER}"
"""Decoder output for bytes that are not, or not yet, a character."""


class Detokenizer:
    """The `TextDecoder` of one completion.

    With the tokenizer's `decode`, without clean-up of spaces, all pushes and `finish`
    together return `cut(decode(prompt + output)[len(decode(prompt)):], stop)`: the text
    after the prompt. For byte-level tokenizers this is `cut(decode(output), stop)`;
    tokenizers that drop the first space of a text keep the one between prompt and
    output. If the prompt ends inside a character, it is `cut(decode(output), stop)` for
    every tokenizer. With `include_stop`, the text ends with the stop string.
    """

    __slots__ = ("_characters", "_decode", "_stop", "stop")

    def __init__(
        self,
        tokenizer: PreTrainedTokenizerBase,
        prompt_tokens: list[int],
        stop: tuple[str, ...],
        skip_special_tokens: bool,
        include_stop: bool = False,
    ) -> None:
        decode = decoder(tokenizer, skip_special_tokens)
        self._characters = CharacterStream(
            decode, prompt_tokens, byte_tokens(tokenizer)
        )
        self._stop = StopFilter(stop, include_stop) if stop else None
        self.stop: str | None = None
        """The stop string that ended the text."""
        self._decode = decoder(tokenizer, skip_special_tokens=False)

    def push(self, token: int) -> tuple[str, bool]:
        """Read one token. Returns the text that is now final, and whether a stop string
        was completed.

        Raises AssertionError after a stop string was completed.
        """
        assert self.stop is None, (
            "cannot push a token: a stop string has ended this text"
        )
        text = self._characters.push(token)
        if self._stop is None or not text:
            return text, False
        text, self.stop = self._stop.push(text)
        return text, self.stop is not None

    def finish(self) -> str:
        """Return the held text: part of a character (U+FFFD) or of a stop string."""
        if self.stop is not None:
            return ""
        text = self._characters.finish()
        return text if self._stop is None else self._stop.finish(text)

    def show(self, token: int, before: int) -> str:
        """Return how a token, special ones too, reads after another one."""
        try:
            head, both = self._decode([before]), self._decode([before, token])
            return both[len(head) :] if both.startswith(head) else self._decode([token])
        except Exception:  # noqa: BLE001 - a tokenizer may refuse ids that only the model has, and this is for display
            return ""


class CharacterStream:
    """Decoder of a growing list of tokens; returns a character once no later token can
    change it.

    Each push decodes a window: the tokens returned last (`seen`, as context for the
    decoder) and those since. Work per token grows only with the held-back tokens, not
    with the text.
    """

    __slots__ = ("_bytes", "_decode", "_seen", "_shown", "_text", "_window")

    def __init__(
        self, decode: Decode, prompt: list[int], bytes_: Collection[int]
    ) -> None:
        self._decode = decode
        self._bytes = bytes_
        self._window = prompt_tail(decode, prompt)
        self._text = decode(self._window)
        self._seen = len(self._window)
        """Tokens at the start of the window that were returned."""
        self._shown = len(self._text)
        """Characters at the start of the window's text that were returned."""

    def push(self, token: int) -> str:
        """Read one token; return the characters that are now final."""
        window = self._window
        window.append(token)
        before, self._text = self._text, self._decode(window)
        # a skipped special token does not end a run of byte tokens
        skipped = self._text == before
        if (
            skipped
            or len(self._text) <= self._shown
            or self._text.endswith(REPLACEMENT)
            or token in self._bytes
        ):
            return ""
        final = self._text[self._shown :]
        del window[: self._seen]
        self._seen, self._text = len(window), self._decode(window)
        self._shown = len(self._text)
        return final

    def finish(self) -> str:
        """Return the held-back characters, complete or not, and clear them."""
        held = self._text[self._shown :]
        self._shown = len(self._text)
        return held


class StopFilter:
    """Filter that ends text at the first stop string, and holds back its beginning."""

    __slots__ = ("_held", "_include", "_longest", "_stop")

    def __init__(self, stop: tuple[str, ...], include: bool = False) -> None:
        self._stop = stop
        self._include = include
        self._longest = max(map(len, stop))
        self._held = ""

    def push(self, text: str) -> tuple[str, str | None]:
        """Return the text that is final, and the stop string that ended it."""
        text = self._held + text
        match = first_stop(text, self._stop)
        if match is not None:
            start, word = match
            self._held = ""
            end = start + len(word) if self._include else start
            return text[:end], word
        final = len(text) - self._beginning(text)
        self._held = text[final:]
        return text[:final], None

    def finish(self, text: str) -> str:
        """Return the held text plus `text`, up to the first stop string."""
        text, self._held = self._held + text, ""
        return cut(text, self._stop, self._include)

    def _beginning(self, text: str) -> int:
        """Return the length of `text`'s longest suffix that begins a stop string."""
        for length in range(min(self._longest - 1, len(text)), 0, -1):
            end = text[-length:]
            if any(stop.startswith(end) for stop in self._stop):
                return length
        return 0


def first_stop(text: str, stop: tuple[str, ...]) -> tuple[int, str] | None:
    """Return the stop string that is completed first, after where it begins; of equals,
    the longest. None without one.

    Completed first, not begun first: only this is independent of token borders, because
    streaming ends at once.
    """
    starts = ((text.find(word), word) for word in stop)
    ends = [(start + len(word), start, word) for start, word in starts if start >= 0]
    return min(ends)[1:] if ends else None


def cut(text: str, stop: tuple[str, ...], include: bool = False) -> str:
    """Return all before the first stop string, or up to its end: the reference."""
    match = first_stop(text, stop)
    if match is None:
        return text
    start, word = match
    return text[: start + len(word)] if include else text[:start]


def decoder(tokenizer: PreTrainedTokenizerBase, skip_special_tokens: bool) -> Decode:
    """Return `tokenizer.decode` without clean-up of spaces, in Rust if it can be."""
    backend = getattr(tokenizer, "backend_tokenizer", None)
    if backend is not None:
        return partial(backend.decode, skip_special_tokens=skip_special_tokens)
    slow = partial(
        tokenizer.decode,
        skip_special_tokens=skip_special_tokens,
        clean_up_tokenization_spaces=False,
    )
    return cast(Decode, slow)  # a list of ids gives one string


def byte_tokens(tokenizer: PreTrainedTokenizerBase) -> frozenset[int]:
    """Return the ids of `<0x00>` to `<0xFF>`, if the tokenizer has them (SentencePiece
    byte fallback).

    A run of them is decoded as a whole: one invalid byte turns every byte of the run
    into U+FFFD, so no character of the run is final before it ends.
    """
    unknown = (None, tokenizer.unk_token_id)
    if tokenizer.convert_tokens_to_ids("<0x00>") in unknown:
        return frozenset()
    ids = (tokenizer.convert_tokens_to_ids(f"<0x{byte:02X}>") for byte in range(256))
    return frozenset(id_ for id_ in ids if isinstance(id_, int) and id_ not in unknown)


def prompt_tail(decode: Decode, prompt: list[int]) -> list[int]:
    """Return the last prompt tokens that give some text; none inside a character."""
    size = 8
    while True:
        tail = prompt[-size:]
        text = decode(tail)
        whole = not text.endswith(REPLACEMENT)
        if (text and whole) or size >= len(prompt):
            return tail if whole else []
        size *= 2
