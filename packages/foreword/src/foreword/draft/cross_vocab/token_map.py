"""The map between target ids and draft ids: shared tokens, and spellings of others."""

from dataclasses import dataclass

import torch
from jaxtyping import Float, Int
from torch import Tensor

from foreword.draft.cross_vocab.vocabulary import ROLES, Vocabulary
from foreword.errors import VocabularyMismatch


@dataclass(frozen=True, slots=True, eq=False)
class TokenMap:
    """Map between a target's vocabulary and a draft model's, token by token."""

    to_draft: Int[Tensor, "target_vocab"]
    """Int64: the draft's token of the same text or role, or -1."""
    to_target: Int[Tensor, "draft_vocab"]
    """Int64: the target's token of the same text or role, or -1; of equal draft tokens,
    only one has it.
    """
    spellings: tuple[tuple[int, ...], ...]
    """Draft ids of each target token: its image, or the pieces of its text."""

    @classmethod
    def between(cls, target: Vocabulary, draft: Vocabulary) -> "TokenMap":
        """Compare two vocabularies. VocabularyMismatch if they share no token."""
        to_draft = [
            -1 if piece is None else draft.ids.get(piece, -1) for piece in target.pieces
        ]
        for role in ROLES:
            if role in target.roles and role in draft.roles:
                to_draft[target.roles[role]] = draft.roles[role]
        to_target = [-1] * len(draft.pieces)
        for token, image in enumerate(to_draft):
            if image >= 0:
                to_target[image] = token
        if max(to_draft, default=-1) < 0:
            raise VocabularyMismatch(
                "cannot translate draft tokens: target and draft model share no token. "
                "Use a method that needs no model"
            )
        filler = draft.roles.get("unk", draft.roles.get("eos", max(to_draft)))
        spellings: list[tuple[int, ...]] = []
        for piece, image in zip(target.pieces, to_draft, strict=True):
            if image >= 0:
                spellings.append((image,))
            else:
                spellings.append(_spelt(piece, draft) or (filler,))
        return cls(torch.tensor(to_draft), torch.tensor(to_target), tuple(spellings))

    @property
    def shared(self) -> tuple[Int[Tensor, "shared"], Int[Tensor, "shared"]]:
        """Shared tokens as (draft ids, target ids), one to one."""
        drafts = (self.to_target >= 0).nonzero().flatten()
        return drafts, self.to_target[drafts]

    def mass(self, logits: Float[Tensor, "rows draft_vocab"]) -> float:
        """Return the share of q on shared tokens, averaged over rows."""
        return (
            logits.float()
            .softmax(-1)[:, self.to_target.to(logits.device) >= 0]
            .sum(-1)
            .mean()
            .item()
        )


def _spelt(
    piece: bytes | str | None,
    draft: Vocabulary,
) -> tuple[int, ...]:
    """Return the draft ids of a piece; unshared special tokens are spelt by name."""
    if piece is None:
        return ()
    return tuple(draft.spell(piece if isinstance(piece, bytes) else piece.encode()))
