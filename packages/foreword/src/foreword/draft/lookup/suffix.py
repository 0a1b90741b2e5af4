"""Suffix drafter: counts what followed the last tokens earlier in the text and in
past answers, without a model.

After SuffixDecoding (Oliaro et al. 2025, arXiv 2411.04975).
"""

import os
import warnings
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file

from foreword.draft.base import Drafter, Source
from foreword.draft.lookup.suffix_index import GAP, SIZES, SuffixIndex
from foreword.draft.lookup.suffix_votes import ContinuationCounts, CountsFactory
from foreword.errors import InvalidRequest, VocabularyMismatch
from foreword.model import Model, Tokenizer
from foreword.native.suffix import NativeCounts
from foreword.registry import OWN_METHODS
from foreword.types import Batch, Draft, DraftTree, Request, Scores, Verdict

CAPACITY = 1 << 20
"""Tokens stored for all tenants together, about 90 bytes each."""
LEAST = 1 << 12
"""Tokens. Initial capacity of a tenant."""
FORMAT, VERSION = "foreword history", "1"
_TENANT = "tenant:"


class AnswerStore:
    """One suffix index per tenant, `capacity` tokens together. Tenants never see each
    other's texts.

    Capacities grow on demand. Beyond the total, the tenant with the largest capacity
    drops its older half, so none crowds out the others. Once all have the least
    capacity, the least recently used tenant is dropped.
    """

    def __init__(self, vocab: int, capacity: int = CAPACITY) -> None:
        """`vocab`: token ids, kept in files. InvalidRequest for a small capacity."""
        if capacity < LEAST:
            raise InvalidRequest(
                f"cannot store {capacity} tokens of past answers. Set capacity to at "
                f"least {LEAST}"
            )
        self.vocab, self.capacity = vocab, capacity
        self._indexes: dict[str, SuffixIndex] = {}

    def __getitem__(self, tenant: str) -> SuffixIndex | None:
        """Return the index of a tenant; None if nothing is stored."""
        return self._indexes.get(tenant)

    def __len__(self) -> int:
        """Return the number of tokens stored for all tenants together."""
        return sum(index.end - index.start for index in self._indexes.values())

    def add(self, tenant: str, tokens: Sequence[int]) -> None:
        """Append a text."""
        if not tokens:
            return
        index = self._indexes.pop(tenant, None) or SuffixIndex(LEAST)
        room = index.capacity
        while room < min(self.capacity, index.end - index.start + len(tokens) + 1):
            room = min(2 * room, self.capacity)
        index = index if room == index.capacity else index.resized(room)
        index.extend([*tokens, GAP])
        self._indexes[tenant] = index  # last: the most recently used
        self._make_room()

    def _make_room(self) -> None:
        indexes = self._indexes
        while sum(index.capacity for index in indexes.values()) > self.capacity:
            most = max(indexes, key=lambda tenant: indexes[tenant].capacity)
            if indexes[most].capacity >= 2 * LEAST:
                indexes[most] = indexes[most].resized(indexes[most].capacity // 2)
            else:
                del indexes[next(iter(indexes))]

    def save(self, path: Path) -> None:
        """Write all texts to one safetensors file, atomically. Raises OSError."""
        texts = {
            _TENANT + tenant: torch.tensor(index.tokens(), dtype=torch.int32)
            for tenant, index in self._indexes.items()
        }
        temporary = path.with_name(f"{path.name}.{os.getpid()}.new")
        try:
            save_file(
                texts,
                temporary,
                {"format": FORMAT, "version": VERSION, "vocab": str(self.vocab)},
            )
            temporary.replace(path)
        except SafetensorError as error:  # raised for a full disk or a missing folder
            raise OSError(str(error)) from error
        finally:
            temporary.unlink(missing_ok=True)

    @classmethod
    def load(
        cls,
        path: Path,
        vocab: int,
        capacity: int = CAPACITY,
    ) -> "AnswerStore":
        """Read a file written by `save`.

        Raises InvalidRequest for a file of another kind, VocabularyMismatch unless it
        is for `vocab` token ids.
        """
        archive = cls(vocab, capacity)
        try:
            with safe_open(path, framework="pt") as file:
                metadata = file.metadata() or {}
                texts = {
                    key.removeprefix(_TENANT): file.get_tensor(key)
                    for key in file.keys()  # noqa: SIM118
                }
        except (SafetensorError, OSError) as error:
            raise InvalidRequest(
                f"cannot load past answers from {path}: {error}. Choose another file"
            ) from error
        if (metadata.get("format"), metadata.get("version")) != (FORMAT, VERSION):
            raise InvalidRequest(
                f"cannot load past answers from {path}: it is not a {FORMAT} of "
                f"version {VERSION}. Choose another file"
            )
        if metadata.get("vocab") != str(vocab):
            raise VocabularyMismatch(
                f"cannot load past answers from {path}: it is for "
                f"{metadata.get('vocab')} tokens, and the target has {vocab}. Keep one "
                "file per tokenizer"
            )
        for tenant, tokens in texts.items():
            archive.add(tenant, tokens[:-1].tolist())  # `add` appends the final gap
        return archive


SAVED = 64
"""The answer store is saved when 1/SAVED of its tokens are new, to bound the time."""


@dataclass(slots=True)
class _Text:
    """Index of one text, and the continuation counts of the current round."""

    index: SuffixIndex = field(default_factory=lambda: SuffixIndex(1024))
    counts: ContinuationCounts | NativeCounts | None = None

    def read(self, tokens: list[int]) -> None:
        """Index the tokens appended since the last call."""
        if len(tokens) > self.index.capacity:
            self.index = SuffixIndex(2 * len(tokens))
        self.index.extend(tokens[self.index.end :])


class SuffixDrafter(Drafter):
    """Drafter that counts what followed the last tokens earlier in the text and in
    past answers to its tenant.

    A match of the last 16 tokens counts 256 times as much as a match of one. The draft
    holds the likeliest paths: a tree grown best first, or the likeliest chain where the
    verifier takes no trees. The output of a finished request is stored; its prompt is
    not.
    """

    about = OWN_METHODS["suffix"]

    def __init__(
        self,
        archive: AnswerStore,
        path: Path | None = None,
        ask: CountsFactory | None = None,
    ) -> None:
        """`archive` holds past answers; it is saved to `path`, if there is one, as it
        grows.

        `ask` counts continuations; None = in C where there is a compiler.
        """
        self.archive = archive
        self._path, self._unsaved = path, 0
        self._warned = False
        self._archived: int | None = None
        """Id of the request that was released last."""
        self._texts: dict[int, _Text] = {}
        self._count = CountsFactory() if ask is None else ask

    @classmethod
    def load(
        cls, source: Source, target: Model, tokenizer: Tokenizer | None
    ) -> "SuffixDrafter":
        """`source` is a file of past answers, read if it exists and saved as requests
        finish; None = no file.

        Raises InvalidRequest for a file of another kind, VocabularyMismatch for one of
        another vocabulary.
        """
        del tokenizer
        if source is None:
            return cls(AnswerStore(target.vocab))
        if not isinstance(source, str | Path):
            raise InvalidRequest(
                "cannot load past answers: this method works without a draft model. "
                "Pass draft='file of past answers' or None"
            )
        path = Path(source)
        if path.is_dir() or not path.parent.is_dir():
            raise InvalidRequest(
                f"cannot keep past answers in {path}: it is a folder, or its folder "
                "does not exist. Choose another path"
            )
        return cls(
            AnswerStore.load(path, target.vocab)
            if path.exists()
            else AnswerStore(target.vocab),
            path,
        )

    def save(self, path: Path | None = None) -> None:
        """Write past answers for `load`. Raises InvalidRequest without a path."""
        path = path or self._path
        if path is None:
            raise InvalidRequest(
                "cannot save past answers: the path is missing. Pass one"
            )
        self.archive.save(path)
        self._unsaved = 0

    def propose(self, batch: Batch, nodes: Sequence[int]) -> Draft:
        pairs = zip(batch.requests, nodes, strict=True)
        return Draft([self._propose(batch, s, budget) for s, budget in pairs])

    def observe(
        self, batch: Batch, draft: Draft, verdict: Verdict, scores: Scores
    ) -> None:
        for request, tokens in zip(batch.requests, verdict.said(draft), strict=True):
            text = self._texts.get(request.id)
            if text is not None and text.counts is not None:
                text.counts.close(tokens)
                text.counts = None

    def release(self, request: Request) -> None:
        drafted = self._texts.pop(request.id, None) is not None
        if not drafted and request.id == self._archived:
            return  # several methods share this drafter, and each releases
        self._archived = request.id
        written = request.tokens[request.prompt :]
        self.archive.add(request.params.tenant, written)
        self._unsaved += len(written)
        if self._path and self._unsaved * SAVED >= len(self.archive):
            self._try_save()

    def _try_save(self) -> None:
        """Save the past answers; if this fails, warn once and try again later."""
        try:
            self.save()
        except OSError as error:
            if not self._warned:
                self._warned = True
                message = (
                    f"cannot save past answers to {self._path}: {error}. They stay in "
                    "memory until it is writable"
                )
                warnings.warn(message, RuntimeWarning, stacklevel=2)

    def _propose(self, batch: Batch, request: Request, budget: int) -> DraftTree:
        """Return at most `budget` draft tokens, none after an end-of-text token."""
        if budget <= 0:
            return DraftTree()
        text = self._texts.setdefault(request.id, _Text())
        tokens = request.copyable
        text.read(tokens)
        past = self.archive[request.params.tenant]
        context = tokens[-SIZES[0] :]
        length = min(budget, batch.reach(request))
        greedy = request.params.greedy
        text.counts = self._count(text.index, past, context, length, greedy=greedy)
        eos, branches = request.eos, batch.trees
        return text.counts.grown(budget, batch.floor, eos, branches=branches)
