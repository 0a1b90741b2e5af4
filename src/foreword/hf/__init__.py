"""Drop-in for transformers: the same call, the same answer, sooner. `generate` serves one call, `enable` all of them.

Knows transformers' generation interface; knows nothing about methods, rules or how a model is driven.
"""

from foreword.hf.generation import SpeculativeOutput, generate
from foreword.hf.patch import disable, enable

__all__ = ["SpeculativeOutput", "disable", "enable", "generate"]
