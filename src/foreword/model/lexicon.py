"""What the tokens of a vocabulary stand for: bytes of text, or a role. So two vocabularies can be compared.

Knows the spellings of byte-level and SentencePiece vocabularies; knows nothing about models.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

from foreword.model.vocabulary import Tokenizer

Piece = bytes | str
"""Bytes of text, or the name of a special token, which stands for none."""

ROLES = ("pad", "unk", "bos", "eos")
"""Where one token plays several roles, the last one counts."""
_VISIBLE = (*range(33, 127), *range(161, 173), *range(174, 256))
_ALPHABET = {chr(byte): byte for byte in _VISIBLE} | {
    chr(256 + place): byte for place, byte in enumerate(sorted(set(range(256)) - set(_VISIBLE)))
}
"""The characters that byte-level vocabularies write bytes with (Radford et al. 2019): one that shows is itself."""
_BYTE = re.compile("<0x([0-9A-F]{2})>")
"""How SentencePiece spells a byte that is no character of its own."""


class Lexicon:
    """The pieces of one tokenizer by token id, the ids by piece, and text put into tokens."""

    def __init__(self, tokenizer: Tokenizer, size: int) -> None:
        """`size` is the model's; ids without a token (padding of the embedding) stand for nothing."""
        self._tokenizer = tokenizer
        self.pieces = _pieces(tokenizer, size)
        # Of several tokens for one piece the last: SentencePiece lists its bytes before the characters.
        self.ids: dict[Piece, int] = {piece: token for token, piece in enumerate(self.pieces) if piece}
        self.roles: dict[str, int] = {}
        for role in ROLES:
            token = getattr(tokenizer, f"{role}_token_id")
            if isinstance(token, int) and token < size:
                self.roles[role] = token
        self._longest = max((len(piece) for piece in self.ids if isinstance(piece, bytes)), default=0)

    def text(self, ids: Iterable[int]) -> bytes:
        """The bytes that these tokens stand for; special tokens stand for none."""
        return b"".join(piece for token in ids if isinstance(piece := self.pieces[token], bytes))

    def special(self, token: int) -> bool:
        """The token stands for no text."""
        return not isinstance(self.pieces[token], bytes)

    def spell(self, text: bytes) -> list[int]:
        """Tokens of any bytes, the longest that fits first. A byte that no token has becomes the unknown token."""
        spelt: list[int] = []
        while text:
            sizes = range(min(self._longest, len(text)), 0, -1)
            size = next((size for size in sizes if text[:size] in self.ids), 0)
            spelt += [self.ids[text[:size]]] if size else [self.roles[role] for role in ("unk",) if role in self.roles]
            text = text[size or 1 :]
        return spelt

    def follow(self, before: bytes, text: bytes) -> list[int]:
        """The tokenizer's own tokens of `text` where it stands after `before`.

        Counted from the end, so it does not matter what a tokenizer puts before a text. Where its tokens run across the
        border, or the bytes are not characters, the longest tokens that fit.
        """
        try:
            whole = (before + text).decode()
        except UnicodeDecodeError:
            return self.spell(text)
        tokens = self._tokenizer(whole, add_special_tokens=False)["input_ids"]
        start, rest = len(tokens), len(text)
        while rest > 0 and start > 0:
            start -= 1
            rest -= len(self.text(tokens[start : start + 1]))
        return tokens[start:] if self.text(tokens[start:]) == text else self.spell(text)


def _pieces(tokenizer: Tokenizer, size: int) -> tuple[Piece | None, ...]:
    vocabulary, added = tokenizer.get_vocab(), tokenizer.added_tokens_decoder
    read = _byte_level if _writes_bytes(tokenizer, vocabulary) else _sentencepiece
    found: list[Piece | None] = [None] * size
    for written, token in vocabulary.items():
        if token in added and token < size:
            found[token] = written if added[token].special else written.encode()
        elif token < size:
            found[token] = read(written)
    return tuple(found)


def _writes_bytes(tokenizer: Tokenizer, vocabulary: Iterable[str]) -> bool:
    """Ġ is a letter in some vocabularies, and how others write a space: decoding one such token tells."""
    token = next((token for token in vocabulary if token.startswith("Ġ")), None)
    return token is not None and "Ġ" not in tokenizer.decode([tokenizer.get_vocab()[token]])


def _byte_level(token: str) -> bytes:
    return bytes(_ALPHABET[letter] for letter in token) if set(token) <= _ALPHABET.keys() else token.encode()


def _sentencepiece(token: str) -> bytes:
    byte = _BYTE.fullmatch(token)
    return bytes.fromhex(byte[1]) if byte else token.replace("▁", " ").encode()
