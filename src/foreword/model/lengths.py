"""Models whose places turn by how long a text is: what may be read in one forward, so that guesses change nothing.

Their rotary embeddings look at the longest position of a forward. Company would change a sequence's text, so each is
read alone; and so would guesses that go further than plain decoding has come, so these are read one by one then.

Knows rotary embeddings and reads; knows nothing about drivers.
"""

from __future__ import annotations

from collections.abc import Sequence as List
from dataclasses import dataclass
from typing import Any

from transformers import PreTrainedModel

from foreword.model.plan import Read


@dataclass(frozen=True, slots=True)
class Length:
    """How places of a model depend on the length of a text."""

    border: int
    """Tokens up to which they do not."""
    rotaries: List[Any]
    """Where it is decided; some remember the longest text they have seen, whose ever that was."""
    twice: bool
    """There are two ways to turn, one up to the border and one beyond it; else every length beyond has its own."""

    def parts(self, read: Read) -> List[Read]:
        """A read in as many as plain decoding of its guesses would make, where that matters."""
        guesses = max(read.keep - 1, 0) if read.parents is None else len(read.parents) - read.held
        sure = len(read.tokens) - guesses
        committed, longest = read.past + sure, read.past + max(read.depths) + 1
        if longest <= self.border or guesses == 0 or (self.twice and committed > self.border):
            return [read]
        first = Read(read.id, read.past, read.tokens[:sure], keep=max(read.keep - guesses, 0))
        one_by_one = [_guess(read, sure, i, keep=i >= guesses - read.keep) for i in range(guesses)]
        return [first, *one_by_one] if sure else one_by_one

    def forget(self) -> None:
        """Have the next forward decide anew."""
        for rotary in self.rotaries:
            rotary.max_seq_len_cached = 0


def length_of(model: PreTrainedModel) -> Length | None:
    """None where places do not depend on it."""
    config = model.config.get_text_config()
    rope = getattr(config, "rope_parameters", None) or {}
    if rope.get("rope_type") not in ("dynamic", "longrope"):
        return None
    border = rope.get("original_max_position_embeddings") or config.max_position_embeddings
    rotaries = [module for module in model.modules() if hasattr(module, "max_seq_len_cached")]
    return Length(border, rotaries, rope["rope_type"] == "longrope")


def _guess(read: Read, sure: int, number: int, *, keep: bool) -> Read:
    """One of the guesses alone, once those before it have been read."""
    token, past = read.tokens[sure + number], read.past + sure
    if read.parents is None:
        return Read(read.id, past + number, [token], keep=int(keep))
    held = read.held + number
    return Read(read.id, past, [token], read.parents[: held + 1], int(keep), held)
