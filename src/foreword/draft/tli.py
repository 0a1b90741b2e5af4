"""A smaller model with another tokenizer writes ahead in the tokens that both vocabularies have (Timor et al. 2025).

Knows where the models are loaded; all translating is done in model/, all drafting by the language model drafter.
"""

from __future__ import annotations

from foreword.draft.base import MODEL, Source
from foreword.draft.lm import LanguageModelDrafter
from foreword.draft.pairing import Pair, introduce
from foreword.model import Model, Tokenizer
from foreword.model.translated import translated


class IntersectionDrafter(LanguageModelDrafter):
    """Token-level intersection (arXiv 2502.05202, algorithm 4): q'(x) = q(x) / q(shared) on shared tokens, else 0.

    q' is drawn from and judged like any other draft law, so every rule is exact with it at every temperature.
    """

    summary = "a smaller model with another tokenizer writes ahead in shared tokens"
    takes, needs = MODEL, True
    learns = False  # what it says is of another vocabulary

    def __init__(self, pair: Pair) -> None:
        super().__init__(translated(pair.model, pair.translation))

    @classmethod
    def load(cls, source: Source, target: Model, tokenizer: Tokenizer | None) -> IntersectionDrafter:
        return cls(introduce(source, target, tokenizer))
