"""Target ids and draft ids of the same text: which tokens both vocabularies have, and how to spell the others.

Knows two lexicons; knows nothing about models or texts.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from jaxtyping import Float, Int
from torch import Tensor

from foreword.errors import VocabularyMismatch
from foreword.model.lexicon import ROLES, Lexicon


@dataclass(frozen=True, slots=True, eq=False)
class Translation:
    """Between a target's vocabulary and a draft model's, token by token."""

    to_draft: Int[Tensor, "target_vocab"]
    """Int64: the draft's token of the same text or role, or -1."""
    to_target: Int[Tensor, "draft_vocab"]
    """Int64: the target's token of the same text or role, or -1; of draft tokens that mean the same, one has it."""
    spellings: tuple[tuple[int, ...], ...]
    """For each target token the draft ids that say it, never none: its image, or the pieces of its text."""

    @classmethod
    def between(cls, target: Lexicon, draft: Lexicon) -> Translation:
        """Compare two vocabularies. Raises VocabularyMismatch where they have nothing in common."""
        to_draft = [-1 if piece is None else draft.ids.get(piece, -1) for piece in target.pieces]
        for role in ROLES:
            if role in target.roles and role in draft.roles:
                to_draft[target.roles[role]] = draft.roles[role]
        to_target = [-1] * len(draft.pieces)
        for token, image in enumerate(to_draft):
            if image >= 0:
                to_target[image] = token
        if max(to_draft, default=-1) < 0:
            raise VocabularyMismatch("target and draft model share not one token; use a drafter that needs no model")
        filler = draft.roles.get("unk", draft.roles.get("eos", max(to_draft)))
        spellings = tuple(
            (image,) if image >= 0 else _spelt(piece, draft) or (filler,)
            for piece, image in zip(target.pieces, to_draft, strict=True)
        )
        return cls(torch.tensor(to_draft), torch.tensor(to_target), spellings)

    @property
    def shared(self) -> tuple[Int[Tensor, "shared"], Int[Tensor, "shared"]]:
        """The tokens that a guess can be, as (draft ids, target ids), one to one."""
        drafts = (self.to_target >= 0).nonzero().flatten()
        return drafts, self.to_target[drafts]

    def mass(self, logits: Float[Tensor, "rows draft_vocab"]) -> float:
        """The share of the draft model's probability that lies on shared tokens, on average over rows."""
        return logits.float().softmax(-1)[:, self.to_target.to(logits.device) >= 0].sum(-1).mean().item()


def _spelt(piece: bytes | str | None, draft: Lexicon) -> tuple[int, ...]:
    """A special token that the draft does not know is read to it by its name."""
    if piece is None:
        return ()
    return tuple(draft.spell(piece if isinstance(piece, bytes) else piece.encode()))
