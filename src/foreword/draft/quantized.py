"""The target with weights of 4 or 8 bits is its own drafter (QuantSpec: Tiwari et al. 2025; ML-SpecQD: 2503.13565).

Knows how many bits; the codes and their products are in native/quantized.c.
"""

from __future__ import annotations

from foreword.draft.base import Source
from foreword.draft.own import SPARE, SelfDrafter
from foreword.errors import InvalidRequest
from foreword.model import Model, Tokenizer
from foreword.model.view import view

BITS = {"int4": 4, "int8": 8}


class QuantizedDrafter(SelfDrafter):
    """Guesses with a copy of the target's weights in fewer bits, at 28% (int4) or half (int8) of their memory.

    A forward over one token reads every weight once, so on a machine that waits for memory it costs about that share.
    """

    summary = "the target itself with weights of 4 or 8 bits (native CPU driver only)"
    takes = "int4 or int8"

    @classmethod
    def load(cls, source: Source, target: Model, tokenizer: Tokenizer | None) -> QuantizedDrafter:
        """`source` is "int4" (None means that) or "int8". Raises InvalidRequest for others and for other drivers."""
        del tokenizer  # it is the target's own
        bits = BITS.get("int4" if source is None else str(source))
        if bits is None:
            raise InvalidRequest(f"this method needs no draft model: give draft='int4' or 'int8', got {source!r}")
        return cls(view(target, bits=bits, spare=SPARE))
