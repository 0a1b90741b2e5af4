"""The token ids that a draft model with a large vocabulary chooses from: the first
ones (FR-Spec, Zhao et al. 2025) and what its texts hold.
"""

from collections.abc import Collection, Iterable

import torch
from jaxtyping import Float, Int
from torch import Tensor

from foreword.model import Model

RECENT = 512
"""Most ids of texts beyond the first. Each brings 63 others into the product."""


class DraftVocabulary:
    """The first ids of a draft model, which are the likeliest: tokenizers number what
    they merge in the order of its frequency in their training text.

    Texts repeat their rare words, so their ids join the first ones. Nothing else of the
    model changes; a token without a logit is not drafted.
    """

    def __init__(self, model: Model, first: int, ends: Collection[int]) -> None:
        """`first`: the number of first ids; `ends`: ids that end an answer."""
        self._first = first
        self._ends = ends
        self._of_texts: set[int] = set()
        self._limit = getattr(model.backend, "limit_head", None)
        self._limited: set[int] | None = None
        if first >= model.vocab:
            self._limit = None
        self.tokens: Int[Tensor, "kept"] | None = None
        """The ids of the model's logits; None = all, as where its backend can compute
        no part of them.
        """

    def read(self, tokens: Iterable[int]) -> None:
        """Add the ids of a text."""
        added = {token for token in tokens if token >= self._first}
        added -= self._of_texts
        if len(self._of_texts) + len(added) > RECENT:
            self._of_texts = set()
        self._of_texts |= {*list(added)[:RECENT]}

    def limit(self, *, texts: bool) -> None:
        """Have the model compute the logits of these ids from now on.

        Without the ids of `texts` where a rule compares distributions: one request's
        may not depend on other requests.
        """
        others = {*self._ends}
        if texts:
            others |= self._of_texts
        if self._limit is not None and others != self._limited:
            self._limited = others
            self.tokens = self._limit(self._first, others)

    def over(
        self, logits: Float[Tensor, "kept ids"], vocab: int
    ) -> Float[Tensor, "kept vocab"]:
        """Return the logits of all ids: -inf without one."""
        if self.tokens is None:
            return logits
        return over_target_vocab(logits, self.tokens, vocab)


def over_target_vocab(
    logits: Float[Tensor, "kept draft_vocab"],
    tokens: Int[Tensor, "draft_vocab"],
    vocab: int,
) -> Float[Tensor, "kept vocab"]:
    """Scatter draft-vocabulary logits to the target's ids; all others are -inf."""
    if logits.shape[1] == vocab:
        return logits
    return logits.new_full((len(logits), vocab), -torch.inf).index_copy_(
        1, tokens, logits
    )
