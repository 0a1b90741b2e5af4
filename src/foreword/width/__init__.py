"""How much to guess. Under `match` no choice made here changes the text.

Knows costs and what became of guesses; knows nothing about models or how guesses are made.
"""

from foreword.width.base import Fixed, Outcome, Width
from foreword.width.costs import Costs
from foreword.width.measured import Measured

__all__ = ["Costs", "Fixed", "Measured", "Outcome", "Width"]
