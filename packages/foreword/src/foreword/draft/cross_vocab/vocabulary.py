"""The meaning of each token of a vocabulary, bytes of text or a role, so that two
vocabularies can be compared.

It supports byte-level and SentencePiece vocabularies.
"""

import re
from collections.abc import Iterable

from foreword.model.tokenizer import Tokenizer

Piece = bytes | str
"""Bytes of text, or the name of a special token, which has none."""

ROLES = ("pad", "unk", "bos", "eos")
"""Roles of special tokens. If one token has several, the last one counts."""
_VISIBLE = (*range(33, 127), *range(161, 173), *range(174, 256))
_HIDDEN = sorted(set(range(256)) - set(_VISIBLE))
_ALPHABET = {chr(byte): byte for byte in _VISIBLE}
_ALPHABET |= {chr(256 + index): byte for index, byte in enumerate(_HIDDEN)}
"""Characters for bytes in byte-level vocabularies (Radford et al. 2019); visible ones
stand for themselves.
"""
_BYTE = re.compile("<0x([0-9A-F]{2})>")
"""SentencePiece's spelling of a byte that is not a character by itself."""


class Vocabulary:
    """Pieces of one tokenizer by token id, ids by piece, and the encoding of text."""

    def __init__(
        self,
        tokenizer: Tokenizer,
        size: int,
    ) -> None:
        """Take the model's `size`; ids without a token (padding) have no piece."""
        self._tokenizer = tokenizer
        self.pieces = _pieces(tokenizer, size)
        # Of several tokens for one piece the last: SentencePiece lists its bytes before
        # the characters.
        self.ids: dict[Piece, int] = {
            piece: token for token, piece in enumerate(self.pieces) if piece
        }
        self.roles: dict[str, int] = {}
        for role in ROLES:
            token = getattr(tokenizer, f"{role}_token_id")
            if isinstance(token, int) and token < size:
                self.roles[role] = token
        self._longest = max(
            (len(piece) for piece in self.ids if isinstance(piece, bytes)), default=0
        )

    def text(self, ids: Iterable[int]) -> bytes:
        """Return the bytes of these tokens; special tokens have none."""
        pieces = (self.pieces[token] for token in ids)
        return b"".join(piece for piece in pieces if isinstance(piece, bytes))

    def special(self, token: int) -> bool:
        """Return whether the token has no text."""
        return not isinstance(self.pieces[token], bytes)

    def spell(self, text: bytes) -> list[int]:
        """Return tokens of any bytes, longest first; a byte without one is unknown."""
        spelt: list[int] = []
        while text:
            sizes = range(min(self._longest, len(text)), 0, -1)
            size = next((size for size in sizes if text[:size] in self.ids), 0)
            if size:
                spelt.append(self.ids[text[:size]])
            elif "unk" in self.roles:
                spelt.append(self.roles["unk"])
            text = text[size or 1 :]
        return spelt

    def follow(self, before: bytes, text: bytes) -> list[int]:
        """Return the tokenizer's own tokens of `text` after `before`.

        They are counted from the end, so tokens that a tokenizer puts before a text do
        not matter. If tokens cross the boundary, or the bytes are not valid UTF-8, the
        longest tokens that fit are used.
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


def _pieces(
    tokenizer: Tokenizer,
    size: int,
) -> tuple[Piece | None, ...]:
    vocabulary, added = tokenizer.get_vocab(), tokenizer.added_tokens_decoder
    read = _byte_level if _writes_bytes(tokenizer, vocabulary) else _sentencepiece
    pieces: list[Piece | None] = [None] * size
    for written, token in vocabulary.items():
        if token in added and token < size:
            pieces[token] = written if added[token].special else written.encode()
        elif token < size:
            pieces[token] = read(written)
    return tuple(pieces)


def _writes_bytes(
    tokenizer: Tokenizer,
    vocabulary: Iterable[str],
) -> bool:
    """Return whether Ġ stands for a space, by decoding one such token; in some
    vocabularies it is a letter.
    """
    token = next((token for token in vocabulary if token.startswith("Ġ")), None)
    return token is not None and "Ġ" not in tokenizer.decode(
        [tokenizer.get_vocab()[token]]
    )


def _byte_level(token: str) -> bytes:
    if set(token) <= _ALPHABET.keys():
        return bytes(_ALPHABET[letter] for letter in token)
    return token.encode()


def _sentencepiece(token: str) -> bytes:
    byte = _BYTE.fullmatch(token)
    return bytes.fromhex(byte[1]) if byte else token.replace("▁", " ").encode()
