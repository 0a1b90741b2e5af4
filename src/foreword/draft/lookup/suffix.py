"""Suffix drafter: counts what followed the last tokens earlier in the sequence and in
past answers, without a model.

After SuffixDecoding (Oliaro et al. 2025, arXiv 2411.04975).
"""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from foreword.draft.base import Drafter, Source
from foreword.draft.lookup.suffix_index import SIZES, SuffixIndex
from foreword.draft.lookup.suffix_store import AnswerStore
from foreword.draft.lookup.suffix_votes import (
    Bounds,
    CountsFactory,
    CountsOfText,
    counts_factory,
)
from foreword.errors import InvalidRequest
from foreword.model import Model, Tokenizer
from foreword.registry import OWN_METHODS
from foreword.types import Batch, Draft, DraftTree, Request, Scores, Verdict

SAVED = 64
"""The answer store is saved when 1/SAVED of its tokens are new; bounds the time spent
on saving.
"""


@dataclass(slots=True)
class _Text:
    """Index of one sequence, and the continuation counts of the current round."""

    index: SuffixIndex = field(default_factory=lambda: SuffixIndex(1024))
    counts: CountsOfText | None = None

    def read(self, tokens: list[int]) -> None:
        """Index the tokens appended since the last call."""
        if len(tokens) > self.index.capacity:
            self.index = SuffixIndex(2 * len(tokens))
        self.index.extend(tokens[self.index.end :])


class SuffixDrafter(Drafter):
    """Drafter that counts what followed the last tokens earlier in the sequence and in
    past answers to its tenant.

    A match of the last 16 tokens counts 256 times as much as a match of one. The draft
    holds the likeliest paths: a tree grown best first, or the likeliest chain where the
    verifier takes no trees. The output of a finished sequence is stored; its prompt is
    not.
    """

    about = OWN_METHODS["suffix"]
    looks_up = True

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
        """Id of the sequence that was released last."""
        self._texts: dict[int, _Text] = {}
        self._count = counts_factory() if ask is None else ask

    @classmethod
    def load(
        cls, source: Source, target: Model, tokenizer: Tokenizer | None
    ) -> SuffixDrafter:
        """`source` is a file of past answers, read if it exists and saved as sequences
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
        """Write the past answers to a file that `load` reads.

        Raises InvalidRequest without a path.
        """
        path = path or self._path
        if path is None:
            raise InvalidRequest(
                "cannot save past answers: the path is missing. Pass one"
            )
        self.archive.save(path)
        self._unsaved = 0

    def propose(self, batch: Batch, nodes: Sequence[int]) -> Draft:
        return Draft(
            [
                self._propose(batch, s, budget)
                for s, budget in zip(batch.sequences, nodes, strict=True)
            ]
        )

    def observe(
        self, batch: Batch, draft: Draft, verdict: Verdict, scores: Scores
    ) -> None:
        for sequence, tokens in zip(batch.sequences, verdict.said(draft), strict=True):
            text = self._texts.get(sequence.id)
            if text is not None and text.counts is not None:
                text.counts.close(tokens)
                text.counts = None

    def release(self, sequence: Request) -> None:
        drafted = self._texts.pop(sequence.id, None) is not None
        if not drafted and sequence.id == self._archived:
            return  # several methods share this drafter, and each releases
        self._archived = sequence.id
        written = sequence.tokens[sequence.prompt :]
        self.archive.add(sequence.params.tenant, written)
        self._unsaved += len(written)
        if self._path and self._unsaved * SAVED >= len(self.archive):
            self._try_save()

    def _try_save(self) -> None:
        """Save the past answers; if this fails, warn once and try again after the next
        request.
        """
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

    def _propose(self, batch: Batch, sequence: Request, budget: int) -> DraftTree:
        """Return at most `budget` draft tokens, none after an end-of-text token."""
        if budget <= 0:
            return DraftTree()
        text = self._texts.setdefault(sequence.id, _Text())
        tokens = sequence.copyable
        text.read(tokens)
        past, context = self.archive[sequence.params.tenant], tokens[-SIZES[0] :]
        length, greedy = min(budget, batch.reach(sequence)), sequence.params.greedy
        text.counts = self._count(text.index, past, context, length, greedy=greedy)
        return text.counts.grown(Bounds(budget, batch.floor, sequence.eos, batch.trees))
