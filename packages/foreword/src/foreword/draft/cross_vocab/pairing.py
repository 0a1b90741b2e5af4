"""Pairs of a target and a draft model with different vocabularies, and the choice of a
drafting method for them.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import cast

from torch import Tensor

from foreword.draft import method
from foreword.draft.base import Drafter, Source
from foreword.draft.cross_vocab.token_map import TokenMap
from foreword.draft.cross_vocab.vocabulary import Vocabulary
from foreword.errors import InvalidRequest, VocabularyMismatch
from foreword.model import Model, Read, Tokenizer, load_tokenizer
from foreword.model.seq2seq import check_decoder_only
from foreword.registry import SHARED_TEXT, SHARED_TOKENS
from foreword.types import Batch, Draft, Request, Scores, Verdict

ENOUGH = 0.6
"""Share of q on shared tokens from which drafting in shared tokens is chosen; it was
still better at 0.75.
"""
PROBE = 256
"""Tokens of the first text on which the share is measured."""
_PROBE_ID = -1
"""Reserved request id of the probe."""


@dataclass(frozen=True, slots=True)
class VocabularyPair:
    """Draft model, both vocabularies, and the token map between them."""

    model: Model
    target: Vocabulary
    draft: Vocabulary
    translation: TokenMap

    @property
    def notice(self) -> str:
        """Return the warning that draft tokens are translated, and its cost."""
        mapped = self.translation.to_draft >= 0
        return (
            "the draft model has another tokenizer, so its draft tokens are "
            f"translated: it has {int(mapped.sum())} of the target's {len(mapped)} "
            "tokens, and fewer are accepted than from one with the target's tokenizer"
        )


def load_pair(
    source: Source, target: Model, tokenizer: Tokenizer | None
) -> VocabularyPair:
    """Load a draft model with its tokenizer and compare it with the target's.

    Raises InvalidRequest without a folder or hub id that has a tokenizer,
    VocabularyMismatch if no token is shared.
    """
    if not isinstance(source, str | Path):
        raise InvalidRequest(
            "cannot load the draft model: its tokenizer is needed as well. Give "
            "draft='folder or hub id'"
        )
    if tokenizer is None:
        raise VocabularyMismatch(
            "cannot translate draft tokens: the target has no tokenizer here. Use a "
            "method that needs no model"
        )
    trusted = target.trust_remote_code
    theirs = load_tokenizer(source, trust_remote_code=trusted)
    model = Model.load(
        source,
        dtype=target.dtype,
        device=str(target.device),
        trust_remote_code=trusted,
    )
    for member in (target, model):
        check_decoder_only(member.seq2seq, member.name, "translate draft tokens")
    model.quantize_int8()
    vocabularies = Vocabulary(tokenizer, target.vocab), Vocabulary(theirs, model.vocab)
    return VocabularyPair(model, *vocabularies, TokenMap.between(*vocabularies))


class CrossVocabularyDrafter(Drafter):
    """Drafter in shared tokens if they hold enough of q, else in re-tokenised text."""

    def __init__(self, pair: VocabularyPair, enough: float = ENOUGH) -> None:
        """Take `enough`, the mean share from which shared tokens are used."""
        self._pair, self._enough = pair, enough
        self._drafter: Drafter | None = None

    @property
    def vocabulary(self) -> Tensor | None:
        """Ids that the drafter can propose; None = all, or none is chosen yet."""
        return getattr(self._drafter, "vocabulary", None)

    def propose(self, batch: Batch, nodes: Sequence[int]) -> Draft:
        if self._drafter is None:
            text = batch.requests[0].tokens
            name = suited(self._pair, text, self._enough)
            kind = cast("Callable[[VocabularyPair], Drafter]", method(name))
            self._drafter = kind(self._pair)
        return self._drafter.propose(batch, nodes)

    def observe(
        self, batch: Batch, draft: Draft, verdict: Verdict, scores: Scores
    ) -> None:
        if self._drafter is not None:
            self._drafter.observe(batch, draft, verdict, scores)

    def release(self, request: Request) -> None:
        if self._drafter is not None:
            self._drafter.release(request)


def suited(pair: VocabularyPair, tokens: Sequence[int], enough: float = ENOUGH) -> str:
    """Return the method for a text: shared tokens if they hold `enough` of q."""
    model, translation = pair.model, pair.translation
    ids = [spelt for token in tokens for spelt in translation.spellings[token]][
        : min(PROBE, model.context)
    ]
    model.open(_PROBE_ID, len(ids))
    try:
        share = translation.mass(model.read([Read(_PROBE_ID, 0, ids, keep=len(ids))]))
    finally:
        model.close(_PROBE_ID)
    return SHARED_TOKENS if share >= enough else SHARED_TEXT
