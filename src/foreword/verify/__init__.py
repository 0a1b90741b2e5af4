"""The third step, decide: which guesses stay. One file per rule, one registry line per rule.

Knows the names of the rules and what each of them keeps; knows nothing about models, drafters or sequences.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from difflib import get_close_matches
from typing import Literal

from jaxtyping import Int
from torch import Tensor

from foreword.errors import UnknownMethod
from foreword.types import Draft, Verdict, Verify
from foreword.verify.block import block
from foreword.verify.match import follow, match
from foreword.verify.rejection import rejection

__all__ = ["RULES", "Rule", "block", "match", "rejection", "rule"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Rule:
    """A way to decide, and what its user may rely on."""

    name: str
    verify: Verify
    shares_noise: bool
    """The drafter may guess with the Gumbel noise the rule decides with. Any other rule is biased by that."""
    trees: bool
    """Judges trees; otherwise chains only."""
    follow: Callable[[Int[Tensor, "batch column"], Draft], Verdict] | None = None
    """What is left of the rule once the target's own token of every column is drawn, where the rule is of that kind."""
    keeps: Literal["same-text", "same-distribution"]
    """What equals plain decoding with the same seed: every token, or only the law that the tokens are drawn from."""


RULES: dict[str, Rule] = {
    "match": Rule(name="match", verify=match, follow=follow, shares_noise=True, trees=True, keeps="same-text"),
    "rejection": Rule(name="rejection", verify=rejection, shares_noise=False, trees=False, keeps="same-distribution"),
    "block": Rule(name="block", verify=block, shares_noise=False, trees=False, keeps="same-distribution"),
}


def rule(name: str) -> Rule:
    """Returns the rule of that name; raises UnknownMethod, with the names there are, where there is none."""
    if name in RULES:
        return RULES[name]
    close = get_close_matches(name, RULES, n=1)
    hint = f"did you mean {close[0]!r}? " if close else ""
    raise UnknownMethod(f"there is no verification rule {name!r}; {hint}choose one of {', '.join(RULES)}")
