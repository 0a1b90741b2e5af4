"""Brings a target and a draft model of different vocabularies together, and finds the way of drafting that suits them.

Knows vocabularies and how to measure what they share; knows no method by name.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from collections.abc import Sequence as List
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol, cast, runtime_checkable

from foreword.draft import RETOLD, SHARED, method
from foreword.draft.base import Drafter, Source
from foreword.errors import InvalidRequest, VocabularyMismatch
from foreword.model import Model, Read, Tokenizer, load_tokenizer
from foreword.model.lexicon import Lexicon
from foreword.model.translation import Translation
from foreword.types import Batch, Draft, Scores, Sequence, Verdict

ENOUGH = 0.6
"""Share of the draft's probability on shared tokens that makes them the better way; they still were at 0.75."""
PROBE = 256
"""Tokens of the first text that the share is measured on."""
_ASIDE = -1
"""The id of a text that is no request."""


@runtime_checkable
class Loads(Protocol):
    """A method, or a recipe for one that joins others."""

    def load(self, source: Source, target: Model, tokenizer: Tokenizer | None) -> Drafter: ...


@dataclass(frozen=True, slots=True)
class Pair:
    """A draft model, what the tokens of both sides stand for, and the translation between them."""

    model: Model
    target: Lexicon
    draft: Lexicon
    translation: Translation


def introduce(source: Source, target: Model, tokenizer: Tokenizer | None) -> Pair:
    """Load a draft model with its tokenizer and compare it with the target's.

    Raises InvalidRequest without a folder or hub id to find a tokenizer in, VocabularyMismatch where nothing is shared.
    """
    if not isinstance(source, str | Path):
        raise InvalidRequest("a draft model with another tokenizer is needed with it: give draft='folder or hub id'")
    if tokenizer is None:
        raise VocabularyMismatch("the target's tokenizer is not known here, so nothing can be translated into it")
    trusted = target.trust_remote_code
    theirs = load_tokenizer(source, trust_remote_code=trusted)
    model = Model.load(source, dtype=target.dtype, device=str(target.device), trust_remote_code=trusted)
    model.lighten()
    lexicons = Lexicon(tokenizer, target.vocab), Lexicon(theirs, model.vocab)
    return Pair(model, *lexicons, Translation.between(*lexicons))


def pair(source: Source, target: Model, tokenizer: Tokenizer | None) -> Drafter:
    """A drafter for models that do not share a tokenizer. Raises what `introduce` raises."""
    return PairDrafter(introduce(source, target, tokenizer))


def load_anyhow(kind: Loads, source: Source, target: Model, tokenizer: Tokenizer | None) -> Drafter:
    """As `kind.load`, where nobody named a method: a draft model of another vocabulary is translated, with a word."""
    try:
        return kind.load(source, target, tokenizer)
    except VocabularyMismatch as error:
        if not isinstance(source, str | Path):
            raise
        drafter = pair(source, target, tokenizer)
        warnings.warn(f"{error}. Its guesses will be translated, which finds fewer", stacklevel=4)
        return drafter


class PairDrafter(Drafter):
    """Drafts in shared tokens where they carry the draft's law on the first text it sees, else in re-tokenised text."""

    def __init__(self, pair: Pair, enough: float = ENOUGH) -> None:
        """`enough` is the share, on average over the first text, from which on shared tokens are taken."""
        self._pair, self._enough = pair, enough
        self._drafter: Drafter | None = None

    def propose(self, batch: Batch, nodes: List[int]) -> Draft:
        if self._drafter is None:
            kind = cast(
                "Callable[[Pair], Drafter]", method(suited(self._pair, batch.sequences[0].tokens, self._enough))
            )
            self._drafter = kind(self._pair)
        return self._drafter.propose(batch, nodes)

    def observe(self, batch: Batch, draft: Draft, verdict: Verdict, scores: Scores) -> None:
        if self._drafter is not None:
            self._drafter.observe(batch, draft, verdict, scores)

    def release(self, sequence: Sequence) -> None:
        if self._drafter is not None:
            self._drafter.release(sequence)


def suited(pair: Pair, tokens: List[int], enough: float = ENOUGH) -> str:
    """Return the method that drafts best after a text: shared tokens if they hold `enough` of the draft's law."""
    model, translation = pair.model, pair.translation
    ids = [spelt for token in tokens for spelt in translation.spellings[token]][: min(PROBE, model.context)]
    model.open(_ASIDE, len(ids))
    try:
        share = translation.mass(model.read([Read(_ASIDE, 0, ids, keep=len(ids))]))
    finally:
        model.close(_ASIDE)
    return SHARED if share >= enough else RETOLD
