"""A corpus of tokens on disk in which the places where a text went on from a given end are found in microseconds.

Knows texts, token ids and files; knows nothing about models, sequences or trees.
"""

from __future__ import annotations

import hashlib
import json
from bisect import bisect_left
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from collections.abc import Sequence as List
from dataclasses import asdict, dataclass, fields, replace
from itertools import islice
from pathlib import Path

import numpy as np
from jaxtyping import Int, UInt

from foreword.disk import appearing
from foreword.errors import InvalidRequest, ModelError, VocabularyMismatch
from foreword.model import Tokenizer

DEPTH = 16
"""Tokens that two places are compared by; those that agree in so many stand in the order of the corpus."""
VERSION = 1
META, TOKENS, ORDER = "meta.json", "tokens.bin", "order.bin"
_TEXTS = 1024
"""Texts that are tokenized at a time."""
_BUCKET = 2**22
"""Places that are sorted at a time: about 300 MB."""
_SLICE = 2**24
"""Tokens that are searched at a time for the places of a bucket."""

Tokens = UInt[np.ndarray, "token"]


@dataclass(frozen=True, slots=True)
class Meta:
    """What a datastore holds and whose token ids these are; kept as JSON beside the data."""

    version: int
    vocab: int
    """Token ids are below this."""
    tokens: int
    """Length of the corpus, the separators between its texts counted."""
    places: int
    """Tokens that can be found: all but the first of each text."""
    tokenizer: str
    """Fingerprint of the tokenizer, see `fingerprint`."""
    sources: dict[str, int]
    """Where the texts came from, and how many from there."""

    @property
    def token(self) -> np.dtype:
        """How a token is stored: the largest number of the type is free, to stand between texts."""
        return np.dtype("<u2" if self.vocab <= 0xFFFF else "<u4")

    @property
    def separator(self) -> int:
        """What stands between texts; no token has this id."""
        return int(np.iinfo(self.token).max)

    @property
    def place(self) -> np.dtype:
        """How a place is stored."""
        return np.dtype("<u4" if self.tokens <= 0xFFFFFFFF else "<u8")


class Datastore:
    """A corpus and its places, ordered by what stands before them, the nearest token first; both mapped, not read.

    These are the sorted suffixes (Manber and Myers 1993) of the reversed corpus, compared for DEPTH tokens: places
    before which the corpus runs alike stand together. So one binary search finds the longest match of a text's end, and
    the next longest ones lie around it, where an order of the text as it runs needs a search for each length.
    """

    def __init__(self, folder: str | Path, tokenizer: Tokenizer | None = None) -> None:
        """Open what `build` has written. Instant: no data is read.

        Raises InvalidRequest where there is no folder, ModelError where it holds no datastore, an incomplete one or one
        of another version, VocabularyMismatch where it was built for another tokenizer than the one given.
        """
        folder = Path(folder)
        self.meta = _meta(folder)
        if tokenizer is not None and fingerprint(tokenizer) != self.meta.tokenizer:
            raise VocabularyMismatch(
                f"the datastore {folder} was built with another tokenizer, so its token ids mean other words; "
                "build one for this model: foreword index FILES --model MODEL --out DIR"
            )
        raw = _mapped(folder / TOKENS, np.dtype(np.uint8), self.meta.tokens * self.meta.token.itemsize)
        self.tokens: Tokens = raw.view(self.meta.token)
        self.order: UInt[np.ndarray, "place"] = _mapped(folder / ORDER, self.meta.place, self.meta.places)
        self._bytes, self._size = raw.data, self.meta.token.itemsize

    def nearest(self, text: List[int], count: int) -> tuple[Int[np.ndarray, "place"], Int[np.ndarray, "place"]]:
        """At most `count` places where the corpus came from what `text` ends with, the longest match first.

        Returns the places (`tokens[place]` is what came next) and how many tokens before each agree with the end of
        the text: from 1 to DEPTH. Of more places that agree equally well, some are returned.
        """
        end = np.array(text[: -DEPTH - 1 : -1], np.int64)  # nearest first
        key = np.minimum(end[::-1], self.meta.separator).astype(self.meta.token).tobytes()[::-1]
        at = bisect_left(self.order, key, key=self._before)
        near = self.order[max(0, at - count) : at + count].astype(np.int64)
        before = self.tokens[near[:, None] - np.arange(1, len(end) + 1)]
        agree = ((before == end) & (end < self.meta.vocab)).cumprod(1).sum(1)
        best = np.argsort(-agree, kind="stable")[:count]
        best = best[agree[best] > 0]
        return near[best], agree[best]

    def after(self, places: Int[np.ndarray, "place"], count: int) -> list[list[int]]:
        """The `count` tokens from each place on, fewer where its text ends before."""
        where = np.minimum(places[:, None] + np.arange(count), self.meta.tokens - 1)  # the last is a separator
        rows, separator = self.tokens[where].tolist(), self.meta.separator
        return [row[: row.index(separator)] if separator in row else row for row in rows]

    def _before(self, place: np.unsignedinteger) -> bytes:
        """What stands before a place, backwards: little-endian numbers read backwards compare as the numbers do."""
        stop = int(place) * self._size
        return bytes(self._bytes[stop - DEPTH * self._size : stop])[::-1]


def build(
    texts: Iterable[tuple[str, str]],
    tokenizer: Tokenizer,
    out: str | Path,
    *,
    progress: Callable[[float], None] | None = None,
) -> Meta:
    """Write a datastore of (source, text) pairs into the new folder `out`; it appears when it is complete, or never.

    The texts are read once, tokenized without the special tokens that a tokenizer adds by itself, and never joined.
    `progress` hears which share of the places has been sorted. Needs about 300 MB of memory (more where a single token
    makes up a large part of the corpus) and 6 bytes of disk per token (8 with more than 65,535 token ids).

    Raises InvalidRequest where `out` exists or the texts hold nothing to look up.
    """
    vocab = max(tokenizer.get_vocab().values()) + 1
    with appearing(Path(out)) as begun:
        meta = Meta(VERSION, vocab, 0, 0, fingerprint(tokenizer), {})
        meta = _write_tokens(texts, tokenizer, meta, begun / TOKENS)
        places = _write_order(np.memmap(begun / TOKENS, meta.token, "r"), meta, begun / ORDER, progress)
        if not places:
            raise InvalidRequest("there is nothing to look up: no text has two tokens")
        meta = replace(meta, places=places)
        (begun / META).write_text(json.dumps(asdict(meta), indent=2) + "\n", encoding="utf-8")
    return meta


def fingerprint(tokenizer: Tokenizer) -> str:
    """SHA-256 of which token has which id, in hexadecimal: tokenizers with the same one mean the same by an id."""
    listed = json.dumps(sorted(tokenizer.get_vocab().items()))
    return hashlib.sha256(listed.encode()).hexdigest()


def _meta(folder: Path) -> Meta:
    again = "build it again: foreword index FILES --model MODEL --out DIR"
    if not folder.is_dir():
        raise InvalidRequest(f"there is no datastore {folder}; build one: foreword index FILES --out {folder}")
    try:
        found = json.loads((folder / META).read_text(encoding="utf-8"))
        version = found["version"]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise ModelError(f"{folder} holds no datastore ({META} cannot be read: {error}); {again}") from error
    if version != VERSION:
        raise ModelError(f"the datastore {folder} is of version {version}, and this program reads {VERSION}; {again}")
    kinds = {one.name: type(found.get(one.name)).__name__ for one in fields(Meta)}
    wanted = {one.name: str(one.type).partition("[")[0] for one in fields(Meta)}
    if kinds != wanted or found.keys() != kinds.keys():
        raise ModelError(f"{folder / META} is damaged: it must hold {wanted}; {again}")
    return Meta(**found)


def _mapped(path: Path, dtype: np.dtype, length: int) -> np.ndarray:
    """A file's numbers as a read-only array. Raises ModelError unless it holds exactly so many."""
    size = path.stat().st_size if path.is_file() else 0
    if size != length * dtype.itemsize or not size:
        raise ModelError(
            f"the datastore {path.parent} is incomplete: {path.name} has {size:,} bytes of "
            f"{length * dtype.itemsize:,}; copy it, or build it again"
        )
    return np.asarray(np.memmap(path, dtype, "r"))  # a plain view: slices of a memmap itself are slow


def _write_tokens(texts: Iterable[tuple[str, str]], tokenizer: Tokenizer, meta: Meta, path: Path) -> Meta:
    """Write the corpus: separators as far as a look back can reach, then texts, each with a separator after it."""
    sources, pairs = Counter[str](), iter(texts)
    with path.open("wb") as file:
        np.full(DEPTH, meta.separator, meta.token).tofile(file)
        while some := list(islice(pairs, _TEXTS)):
            sources.update(source for source, _ in some)
            rows = tokenizer([text for _, text in some], add_special_tokens=False, verbose=False)["input_ids"]
            joined = [token for row in rows for token in (*row, meta.separator)]
            np.array(joined, meta.token).tofile(file)
        return replace(meta, tokens=file.tell() // meta.token.itemsize, sources=dict(sources))


def _write_order(tokens: Tokens, meta: Meta, path: Path, progress: Callable[[float], None] | None) -> int:
    """Write the places in order, bucket by bucket; returns how many there are.

    Eight bytes before a place, read as one little-endian number, compare as the tokens in them do, the nearest first.
    """
    width = 8 // tokens.itemsize
    words = np.ndarray(len(tokens) - width + 1, "<u8", tokens.data, strides=(tokens.itemsize,))
    done = 0
    with path.open("wb") as file:
        for places in _buckets(tokens, meta):
            keys = [words[places - back] for back in range(DEPTH, 0, -width)]  # the last one counts most
            places[np.lexsort(keys)].astype(meta.place).tofile(file)
            done += len(places)
            if progress:
                progress(done / len(tokens))
    if progress:
        progress(1.0)
    return done


def _buckets(tokens: Tokens, meta: Meta) -> Iterator[Int[np.ndarray, "place"]]:
    """The places by the token before them: for each range of tokens, few enough to sort, all places in text order."""
    slices = [slice(start, start + _SLICE) for start in range(0, len(tokens) - 1, _SLICE)]
    pairs = [(tokens[:-1][some], tokens[1:][some], some.start + 1) for some in slices]  # views; nothing is copied
    often = np.zeros(meta.vocab, np.int64)
    for before, after, _ in pairs:
        often += np.bincount(before[(before < meta.vocab) & (after != meta.separator)], minlength=meta.vocab)
    low = 0
    while low < meta.vocab:
        high = low + max(1, int(np.searchsorted(np.cumsum(often[low:]), _BUCKET, "right")))
        found = [
            np.flatnonzero((low <= before) & (before < high) & (after != meta.separator)) + start
            for before, after, start in pairs
        ]
        yield np.concatenate(found)
        low = high
