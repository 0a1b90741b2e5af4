"""The target with weights of 4 or 8 bits as its own drafter (QuantSpec: Tiwari et al.
2025; ML-SpecQD: 2503.13565).

The 4-bit codes and their products are in native/csrc/products/groups.c.
"""

from foreword.draft.base import Source
from foreword.draft.self_speculative.base import SPARE, SelfDrafter
from foreword.errors import InvalidRequest
from foreword.model import Model, Tokenizer
from foreword.model.view import view
from foreword.registry import OWN_METHODS

BITS = {"int4": 4, "int8": 8}


class QuantizedDrafter(SelfDrafter):
    """Drafter with a copy of the target's weights in fewer bits, at 28% (int4) or half
    (int8) of their memory.

    A forward over one token reads every weight once, so where memory bandwidth is the
    limit it costs about that share.
    """

    about = OWN_METHODS["quantized"]

    @classmethod
    def load(
        cls, source: Source, target: Model, tokenizer: Tokenizer | None
    ) -> "QuantizedDrafter":
        """Load with "int4" (default) or "int8", or raise InvalidRequest."""
        del tokenizer  # it is the target's own
        name = "int4" if source is None else str(source)
        bits = BITS.get(name)
        if bits is None:
            raise InvalidRequest(
                f"cannot use draft={source!r}: this method takes no draft model. Give "
                "draft='int4' or 'int8'"
            )
        return cls(view(target, bits=bits, spare=SPARE))
