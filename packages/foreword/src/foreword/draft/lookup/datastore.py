"""A token corpus on disk with a suffix order: finds positions preceded by given last
tokens in microseconds.
"""

import hashlib
import json
from bisect import bisect_left
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, fields, replace
from inspect import formatannotation
from itertools import islice
from pathlib import Path

import numpy as np
from jaxtyping import Int, UInt

from foreword.errors import InvalidRequest, ModelError, VocabularyMismatch
from foreword.files import atomic_folder
from foreword.model import Tokenizer

DEPTH = 16
"""Tokens by which two positions are compared; ties keep the order of the corpus."""
VERSION = 1
META = "meta.json"
TOKENS = "tokens.bin"
ORDER = "order.bin"
_TEXTS = 1024
"""Texts tokenized at a time."""
_BUCKET = 2**22
"""Positions sorted at a time, about 300 MB."""
_SLICE = 2**24
"""Tokens scanned at a time for the positions of a bucket."""

Tokens = UInt[np.ndarray, "token"]


@dataclass(frozen=True, slots=True)
class Meta:
    """Metadata of a datastore and its tokenizer, stored as JSON next to the data."""

    version: int
    vocab: int
    """Upper bound of token ids, exclusive."""
    tokens: int
    """Length of the corpus, including separators."""
    places: int
    """Positions in the order: all tokens but the first of each text."""
    tokenizer: str
    """Fingerprint of the tokenizer, see `fingerprint`."""
    sources: dict[str, int]
    """Number of texts by source."""

    @property
    def token(self) -> np.dtype:
        """Dtype of a token; its largest value is reserved for the separator."""
        return np.dtype("<u2" if self.vocab <= 0xFFFF else "<u4")

    @property
    def separator(self) -> int:
        """Separator between texts; no token has this id."""
        return int(np.iinfo(self.token).max)

    @property
    def place(self) -> np.dtype:
        """Dtype of a position."""
        return np.dtype("<u4" if self.tokens <= 0xFFFFFFFF else "<u8")


class Datastore:
    """A memory-mapped corpus, and its positions sorted by the tokens before them, the
    nearest token first.

    This is the suffix array (Manber and Myers 1993) of the reversed corpus, compared
    for DEPTH tokens, so positions after similar tokens are adjacent. One binary search
    finds the longest match of a text's end, with the next longest around it. A suffix
    array of the corpus itself needs one search per length.
    """

    def __init__(self, folder: str | Path, tokenizer: Tokenizer | None = None) -> None:
        """Open a folder written by `build`. Instant: no data is read.

        Raises InvalidRequest where the folder is missing, ModelError where its
        datastore is missing, incomplete or of another version, VocabularyMismatch where
        it was built with another tokenizer.
        """
        folder = Path(folder)
        self.meta = _meta(folder)
        if tokenizer is not None and fingerprint(tokenizer) != self.meta.tokenizer:
            raise VocabularyMismatch(
                f"cannot use the datastore {folder}: it was built with another "
                "tokenizer. Build one for this model: foreword index FILES --model "
                "MODEL --out DIR"
            )
        raw = _mapped(
            folder / TOKENS,
            np.dtype(np.uint8),
            self.meta.tokens * self.meta.token.itemsize,
        )
        self.tokens: Tokens = raw.view(self.meta.token)
        self.order: UInt[np.ndarray, "place"] = _mapped(
            folder / ORDER, self.meta.place, self.meta.places
        )
        self._bytes, self._size = raw.data, self.meta.token.itemsize

    def nearest(
        self, text: Sequence[int], count: int
    ) -> tuple[Int[np.ndarray, "place"], Int[np.ndarray, "place"]]:
        """Return at most `count` corpus positions whose preceding tokens match the end
        of `text`, longest match first.

        Returns the positions (`tokens[place]` is the next token) and the lengths of
        their matches, from 1 to DEPTH. Ties beyond `count` are cut arbitrarily.
        """
        end = np.array(text[: -DEPTH - 1 : -1], np.int64)  # nearest first
        key = (
            np.minimum(end[::-1], self.meta.separator)
            .astype(self.meta.token)
            .tobytes()[::-1]
        )
        at = bisect_left(self.order, key, key=self._before)
        near = self.order[max(0, at - count) : at + count].astype(np.int64)
        before = self.tokens[near[:, None] - np.arange(1, len(end) + 1)]
        agree = ((before == end) & (end < self.meta.vocab)).cumprod(1).sum(1)
        best = np.argsort(-agree, kind="stable")[:count]
        best = best[agree[best] > 0]
        return near[best], agree[best]

    def after(self, places: Int[np.ndarray, "place"], count: int) -> list[list[int]]:
        """Return `count` tokens from each position on, fewer at the end of a text."""
        # the last is a separator
        where = np.minimum(places[:, None] + np.arange(count), self.meta.tokens - 1)
        rows, separator = self.tokens[where].tolist(), self.meta.separator
        return [
            row[: row.index(separator)] if separator in row else row for row in rows
        ]

    def _before(self, position: np.unsignedinteger) -> bytes:
        """Return the bytes before a position, reversed: reversed little-endian numbers
        compare like the numbers.
        """
        stop = int(position) * self._size
        return bytes(self._bytes[stop - DEPTH * self._size : stop])[::-1]


def build(
    texts: Iterable[tuple[str, str]],
    tokenizer: Tokenizer,
    out: str | Path,
    *,
    progress: Callable[[float], None] | None = None,
) -> Meta:
    """Write a datastore of (source, text) pairs into the new folder `out`, atomically.

    The texts are read once, tokenized without added special tokens, and never joined.
    `progress` is called with the share of positions sorted. Needs about 300 MB of
    memory (more where a single token makes up a large part of the corpus) and 6 bytes
    of disk per token (8 with more than 65,535 token ids).

    Raises InvalidRequest where `out` exists or no text has two tokens.
    """
    vocab = max(tokenizer.get_vocab().values()) + 1
    with atomic_folder(Path(out)) as begun:
        meta = Meta(VERSION, vocab, 0, 0, fingerprint(tokenizer), {})
        meta = _write_tokens(texts, tokenizer, meta, begun / TOKENS)
        places = _write_order(
            np.memmap(begun / TOKENS, meta.token, "r"), meta, begun / ORDER, progress
        )
        if not places:
            raise InvalidRequest(
                "cannot build a datastore: no text has two tokens. Add longer texts"
            )
        meta = replace(meta, places=places)
        (begun / META).write_text(
            json.dumps(asdict(meta), indent=2) + "\n", encoding="utf-8"
        )
    return meta


def fingerprint(tokenizer: Tokenizer) -> str:
    """Return the SHA-256 of the vocabulary in hexadecimal; tokenizers with equal ones
    share token ids.
    """
    listed = json.dumps(sorted(tokenizer.get_vocab().items()))
    return hashlib.sha256(listed.encode()).hexdigest()


def _meta(folder: Path) -> Meta:
    again = "Build it again: foreword index FILES --model MODEL --out DIR"
    if not folder.is_dir():
        raise InvalidRequest(
            f"cannot open the datastore {folder}: no such folder exists. "
            f"Build one: foreword index FILES --out {folder}"
        )
    try:
        facts = json.loads((folder / META).read_text(encoding="utf-8"))
        version = facts["version"]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise ModelError(
            f"cannot open the datastore {folder}: {META} is unreadable ({error}). "
            f"{again}"
        ) from error
    if version != VERSION:
        raise ModelError(
            f"cannot open the datastore {folder}: it is of version {version}, not the "
            f"supported {VERSION}. {again}"
        )
    kinds = {one.name: type(facts.get(one.name)).__name__ for one in fields(Meta)}
    schema = {
        one.name: formatannotation(one.type).partition("[")[0] for one in fields(Meta)
    }
    if kinds != schema or facts.keys() != kinds.keys():
        raise ModelError(
            f"cannot open the datastore {folder}: {META} is damaged, it must hold "
            f"{schema}. {again}"
        )
    return Meta(**facts)


def _mapped(path: Path, dtype: np.dtype, length: int) -> np.ndarray:
    """Map a file as a read-only array of `length` numbers, or raise ModelError."""
    size = path.stat().st_size if path.is_file() else 0
    if size != length * dtype.itemsize or not size:
        raise ModelError(
            f"cannot open the datastore {path.parent}: it is incomplete, {path.name} "
            f"has {size:,} bytes of {length * dtype.itemsize:,}. Copy it again, or "
            "build it again"
        )
    # a plain view: slices of a memmap itself are slow
    return np.asarray(np.memmap(path, dtype, "r"))


def _write_tokens(
    texts: Iterable[tuple[str, str]], tokenizer: Tokenizer, meta: Meta, path: Path
) -> Meta:
    """Write the corpus: DEPTH separators, then each text and a separator."""
    sources, pairs = Counter[str](), iter(texts)
    with path.open("wb") as file:
        np.full(DEPTH, meta.separator, meta.token).tofile(file)
        while some := list(islice(pairs, _TEXTS)):
            sources.update(source for source, _ in some)
            rows = tokenizer(
                [text for _, text in some], add_special_tokens=False, verbose=False
            )["input_ids"]
            joined = [token for row in rows for token in (*row, meta.separator)]
            np.array(joined, meta.token).tofile(file)
        return replace(
            meta, tokens=file.tell() // meta.token.itemsize, sources=dict(sources)
        )


def _write_order(
    tokens: Tokens, meta: Meta, path: Path, progress: Callable[[float], None] | None
) -> int:
    """Write the sorted positions, bucket by bucket; return their number.

    Eight bytes before a position, read as a little-endian number, compare like their
    tokens, nearest first.
    """
    width = 8 // tokens.itemsize
    words = np.ndarray(
        len(tokens) - width + 1, "<u8", tokens.data, strides=(tokens.itemsize,)
    )
    done = 0
    with path.open("wb") as file:
        for places in _buckets(tokens, meta):
            # lexsort: the last key is the primary one.
            keys = [words[places - back] for back in range(DEPTH, 0, -width)]
            places[np.lexsort(keys)].astype(meta.place).tofile(file)
            done += len(places)
            if progress:
                progress(done / len(tokens))
    if progress:
        progress(1.0)
    return done


def _buckets(tokens: Tokens, meta: Meta) -> Iterator[Int[np.ndarray, "place"]]:
    """Yield the positions in text order, for one range of preceding tokens at a time,
    small enough to sort.
    """
    slices = [
        slice(start, start + _SLICE) for start in range(0, len(tokens) - 1, _SLICE)
    ]
    # views; nothing is copied
    pairs = [(tokens[:-1][some], tokens[1:][some], some.start + 1) for some in slices]
    counts = np.zeros(meta.vocab, np.int64)
    for before, after, _ in pairs:
        counts += np.bincount(
            before[(before < meta.vocab) & (after != meta.separator)],
            minlength=meta.vocab,
        )
    low = 0
    while low < meta.vocab:
        high = low + max(
            1, int(np.searchsorted(np.cumsum(counts[low:]), _BUCKET, "right"))
        )
        matches = [
            np.flatnonzero(
                (low <= before) & (before < high) & (after != meta.separator)
            )
            + start
            for before, after, start in pairs
        ]
        yield np.concatenate(matches)
        low = high
