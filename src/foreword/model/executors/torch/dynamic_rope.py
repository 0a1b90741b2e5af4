"""Length-dependent rotary embeddings (longrope, dynamic): splits reads so that draft
tokens change no committed scores.

These embeddings use the longest position of a forward. Other sequences in the batch
would change a sequence's scores, so each is read alone. Draft tokens beyond the length
of plain decoding would too, so they are read one by one.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from transformers import PreTrainedModel

from foreword.model.kv.reads import Read


@dataclass(frozen=True, slots=True)
class DynamicRope:
    """Dependence of a model's rotary embeddings on the sequence length."""

    border: int
    """Tokens. Up to this length the embeddings do not depend on the length."""
    rotaries: Sequence[Any]
    """The rotary modules; some keep the longest length seen in any sequence."""
    twice: bool
    """Whether there are two sets of angles, up to the border and beyond it (longrope).

    Else each length has its own.
    """

    def parts(self, read: Read) -> Sequence[Read]:
        """Split a read into the reads of plain decoding, where its draft tokens would
        change the angles.
        """
        draft_tokens = (
            max(read.keep - 1, 0)
            if read.parents is None
            else len(read.parents) - read.held
        )
        fixed = len(read.tokens) - draft_tokens
        committed, longest = read.past + fixed, read.past + max(read.depths) + 1
        if (
            longest <= self.border
            or draft_tokens == 0
            or (self.twice and committed > self.border)
        ):
            return [read]
        first = Read(
            read.id,
            read.past,
            read.tokens[:fixed],
            keep=max(read.keep - draft_tokens, 0),
        )
        one_by_one = [
            _draft_read(read, fixed, i, keep=i >= draft_tokens - read.keep)
            for i in range(draft_tokens)
        ]
        return [first, *one_by_one] if fixed else one_by_one

    def forget(self) -> None:
        """Reset the cached lengths before the next forward."""
        for rotary in self.rotaries:
            rotary.max_seq_len_cached = 0


def dynamic_rope_of(model: PreTrainedModel) -> DynamicRope | None:
    """Return the dependence of a model's angles on the length; None where there is
    none.
    """
    config = model.config.get_text_config()
    rope = getattr(config, "rope_parameters", None) or {}
    if rope.get("rope_type") not in ("dynamic", "longrope"):
        return None
    border = (
        rope.get("original_max_position_embeddings") or config.max_position_embeddings
    )
    rotaries = [
        module for module in model.modules() if hasattr(module, "max_seq_len_cached")
    ]
    return DynamicRope(border, rotaries, rope["rope_type"] == "longrope")


def _draft_read(read: Read, fixed: int, number: int, *, keep: bool) -> Read:
    """Return a read of one draft token alone, after those before it have been read."""
    token, past = read.tokens[fixed + number], read.past + fixed
    if read.parents is None:
        return Read(read.id, past + number, [token], keep=int(keep))
    held = read.held + number
    return Read(read.id, past, [token], read.parents[: held + 1], int(keep), held)
