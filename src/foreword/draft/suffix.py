"""Every earlier place that ends like the text votes for what followed it there, in this text and in past answers.

Knows the tokens of each sequence; needs no model. After SuffixDecoding (Oliaro et al. 2025, arXiv 2411.04975).
"""

from __future__ import annotations

import warnings
from collections.abc import Sequence as List
from dataclasses import dataclass, field
from pathlib import Path

from foreword.draft.archive import Archive
from foreword.draft.base import Drafter, Source
from foreword.draft.history import SIZES, History
from foreword.draft.poll import Ballot, Bounds, Polls
from foreword.draft.poll_native import polls
from foreword.errors import InvalidRequest
from foreword.model import Model, Tokenizer
from foreword.types import Batch, Draft, Scores, Sequence, Tree, Verdict

SAVED = 64
"""A history is written to its file when one part in so many is new."""


@dataclass(slots=True)
class _Text:
    """One sequence so far, and the votes on its present round."""

    history: History = field(default_factory=lambda: History(1024))
    poll: Ballot | None = None

    def read(self, tokens: list[int]) -> None:
        """Take note of what was appended since the last call."""
        if len(tokens) > self.history.capacity:
            self.history = History(2 * len(tokens))
        self.history.extend(tokens[self.history.end :])


class SuffixDrafter(Drafter):
    """Counts what followed the last tokens of the text earlier in it, and in past answers to the same tenant.

    A place where the last 16 tokens agree counts 256 times as much as one where a single token does, and all vote
    together. Guesses are the likeliest paths: a tree grown best first, or the likeliest chain where trees are not
    judged. What a finished sequence wrote is remembered; its prompt is not.
    """

    summary = "earlier places in the text and in past answers vote for what follows"
    takes = "a file of past answers"

    def __init__(self, archive: Archive, path: Path | None = None, ask: Polls | None = None) -> None:
        """`archive` holds past answers; it is written to `path`, if there is one, as it grows.

        `ask` takes the votes; None = in C where there is a compiler.
        """
        self.archive = archive
        self._path, self._unsaved = path, 0
        self._warned = False
        self._texts: dict[int, _Text] = {}
        self._ask = polls() if ask is None else ask

    @classmethod
    def load(cls, source: Source, target: Model, tokenizer: Tokenizer | None) -> SuffixDrafter:
        """`source` is the file of a history, read if it is there and written as answers are finished; None keeps none.

        Raises InvalidRequest for a file that holds something else, VocabularyMismatch for one of another vocabulary.
        """
        del tokenizer
        if source is None:
            return cls(Archive(target.vocab))
        if not isinstance(source, str | Path):
            raise InvalidRequest("this method guesses without a draft model: give draft='file of a history', or None")
        path = Path(source)
        if path.is_dir() or not path.parent.is_dir():
            raise InvalidRequest(f"{path} cannot be the file of a history; name a file in a folder that exists")
        return cls(Archive.load(path, target.vocab) if path.exists() else Archive(target.vocab), path)

    def save(self, path: Path | None = None) -> None:
        """Write the past answers to a file that `load` reads. Raises InvalidRequest where no path is known."""
        path = path or self._path
        if path is None:
            raise InvalidRequest("there is no file to save the history to; give a path")
        self.archive.save(path)
        self._unsaved = 0

    def propose(self, batch: Batch, nodes: List[int]) -> Draft:
        return Draft([self._guess(batch, s, budget) for s, budget in zip(batch.sequences, nodes, strict=True)])

    def observe(self, batch: Batch, draft: Draft, verdict: Verdict, scores: Scores) -> None:
        for sequence, tokens in zip(batch.sequences, verdict.said(draft), strict=True):
            text = self._texts.get(sequence.id)
            if text is not None and text.poll is not None:
                text.poll.close(tokens)
                text.poll = None

    def release(self, sequence: Sequence) -> None:
        if self._texts.pop(sequence.id, None) is None:
            return
        written = sequence.tokens[sequence.prompt :]
        self.archive.add(sequence.params.tenant, written)
        self._unsaved += len(written)
        if self._path and self._unsaved * SAVED >= len(self.archive):
            self._try_save()

    def _try_save(self) -> None:
        """Save the history; where that fails, warn once and try again after the next request."""
        try:
            self.save()
        except OSError as error:
            if not self._warned:
                self._warned = True
                said = f"cannot save the history to {self._path}: {error}. Past answers are kept in memory meanwhile"
                warnings.warn(said, RuntimeWarning, stacklevel=2)

    def _guess(self, batch: Batch, sequence: Sequence, budget: int) -> Tree:
        """At most `budget` guesses, none after an end-of-text token."""
        if budget <= 0:
            return Tree()
        text = self._texts.setdefault(sequence.id, _Text())
        text.read(sequence.tokens)
        past, context = self.archive[sequence.params.tenant], sequence.tokens[-SIZES[0] :]
        length, greedy = min(budget, batch.reach(sequence)), sequence.params.greedy
        text.poll = self._ask(text.history, past, context, length, greedy=greedy)
        return text.poll.grown(Bounds(budget, batch.floor, sequence.eos, batch.trees))
