"""Token-level intersection: a smaller model with another tokenizer drafts in shared
tokens (Timor et al. 2025).
"""

from __future__ import annotations

from foreword.draft.base import Source
from foreword.draft.cross_vocab.pairing import VocabularyPair, load_pair
from foreword.draft.cross_vocab.remapped import translated
from foreword.draft.lm import LanguageModelDrafter
from foreword.model import Model, Tokenizer
from foreword.registry import OWN_METHODS


class IntersectionDrafter(LanguageModelDrafter):
    """Drafter with q'(x) = q(x) / q(shared) on shared tokens, else 0 (arXiv 2502.05202,
    algorithm 4).

    q' is sampled and verified like any other q, so every rule is exact with it at every
    temperature.
    """

    about = OWN_METHODS["tli"]

    def __init__(self, pair: VocabularyPair) -> None:
        super().__init__(translated(pair.model, pair.translation))
        self.vocabulary = pair.translation.shared[1]

    @property
    def quantizable(self) -> None:
        """None: `load_pair` has quantized it."""

    @classmethod
    def load(
        cls, source: Source, target: Model, tokenizer: Tokenizer | None
    ) -> IntersectionDrafter:
        return cls(load_pair(source, target, tokenizer))
