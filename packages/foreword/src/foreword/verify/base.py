"""What a verification rule is, and what it guarantees."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal

from foreword.types import DraftTree, Lists, Verify

Keeps = Literal["same-text", "same-distribution"]

Follow = Callable[[Sequence[int], DraftTree], tuple[list[int], int]]
"""(target's token of each column, tree) -> (accepted nodes, token after them)."""


GivenText = Callable[[Sequence[float]], list[float]]
"""[q(t)/p(t) of the text's token t at each depth of a chain] -> [probability that at
least 1, 2, … draft tokens are accepted], both given that the target writes this text.
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Rule:
    """A verification rule and its guarantee."""

    name: str
    verify: Verify
    shares_noise: bool = False
    """Whether the drafter may sample with the Gumbel noise the rule verifies with.

    Other rules would be biased.
    """
    lists: Lists
    """How a drafter must sample siblings; "one": the rule verifies chains only."""
    follow: Follow | None = None
    """The rule on the target's drawn tokens; None if it needs distributions."""
    given_text: GivenText | None = None
    """How far a sampled chain is accepted, if the text is known; None for a rule whose
    text and noise are one, or where it is not known.
    """
    keeps: Keeps = "same-distribution"
    """What equals plain decoding with the same seed: the tokens or the distribution."""

    @property
    def trees(self) -> bool:
        """Whether the rule verifies trees; otherwise chains only."""
        return self.lists != "one"
