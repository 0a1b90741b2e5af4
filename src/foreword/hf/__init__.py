"""Drop-in speculation for transformers: `generate` serves one call, `enable` all of them; the text stays the same."""

from foreword.hf.generation import SpeculativeOutput, generate
from foreword.hf.patch import disable, enable

__all__ = ["SpeculativeOutput", "disable", "enable", "generate"]
