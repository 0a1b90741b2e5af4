"""Drop-in speculation for transformers: `generate` serves one call, `enable` all of
them; the text stays the same.
"""

from foreword.hf.generation import generate
from foreword.hf.outputs import SpeculativeOutput, SpeculativeSeq2SeqOutput
from foreword.hf.patch import disable, enable
from foreword.hf.unsupported import pure

__all__ = [
    "SpeculativeOutput",
    "SpeculativeSeq2SeqOutput",
    "disable",
    "enable",
    "generate",
    "pure",
]
