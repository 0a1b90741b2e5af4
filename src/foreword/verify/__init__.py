"""Verification rules: which draft tokens are accepted.

One file and one registry line per rule.
"""

from __future__ import annotations

from collections.abc import Callable
from collections.abc import Sequence as List
from dataclasses import dataclass
from difflib import get_close_matches
from typing import Literal, get_args

from foreword.errors import InvalidRequest, UnknownMethod
from foreword.types import DraftTree, Lists, Verify
from foreword.verify.block import block
from foreword.verify.kseq import kseq
from foreword.verify.match import follow, match
from foreword.verify.rejection import rejection
from foreword.verify.specinfer import specinfer
from foreword.verify.traversal import traversal
from foreword.verify.without_replacement import without_replacement

__all__ = [
    "RULES",
    "Rule",
    "block",
    "kseq",
    "match",
    "rejection",
    "rule",
    "specinfer",
    "traversal",
    "without_replacement",
]


Keeps = Literal["same-text", "same-distribution"]

Follow = Callable[[List[int], DraftTree], tuple[list[int], int]]
"""(target's token of each column, tree) -> (accepted nodes, token after them), for one
sequence.
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Rule:
    """A verification rule and its guarantee."""

    name: str
    verify: Verify
    shares_noise: bool
    """Whether the drafter may sample with the Gumbel noise the rule verifies with.

    Other rules would be biased.
    """
    lists: Lists
    """How a drafter that samples must sample siblings; "one": the rule verifies chains
    only.
    """
    follow: Follow | None = None
    """The rule as a function of the target's drawn tokens; None for a rule that needs
    distributions.
    """
    keeps: Keeps
    """What equals plain decoding with the same seed: every token, or only the
    distribution of the tokens.
    """

    @property
    def trees(self) -> bool:
        """Whether the rule verifies trees; otherwise chains only."""
        return self.lists != "one"


def _same_distribution(name: str, verify: Verify, lists: Lists) -> Rule:
    return Rule(
        name=name,
        verify=verify,
        shares_noise=False,
        lists=lists,
        keeps="same-distribution",
    )


RULES: dict[str, Rule] = {
    "match": Rule(
        name="match",
        verify=match,
        follow=follow,
        shares_noise=True,
        lists="distinct",
        keeps="same-text",
    ),
    "rejection": _same_distribution("rejection", rejection, "one"),
    "block": _same_distribution("block", block, "one"),
    "without-replacement": _same_distribution(
        "without-replacement", without_replacement, "distinct"
    ),
    "traversal": _same_distribution("traversal", traversal, "distinct"),
    "specinfer": _same_distribution("specinfer", specinfer, "independent"),
    "kseq": _same_distribution("kseq", kseq, "independent"),
}


GUARANTEES: tuple[Keeps, ...] = get_args(Keeps)


def rule(name: str, *, draws: bool = False, trees: bool = True) -> Rule:
    """Return the rule of that name, or, for the name of a guarantee, the fastest rule
    that gives it.

    `draws`: the drafter can sample its draft tokens for a rule that compares
    distributions. `trees`: the target can verify trees. By docs/rules.md coupled trees
    have about as many accepted tokens as sampled ones and cost less; for chains,
    sampled drafts under `block` have more. Raises UnknownMethod for any other name.
    """
    names = (*RULES, *GUARANTEES)
    if not isinstance(name, str):
        raise InvalidRequest(
            f"cannot use rule={name!r}: it is no name. Choose one of {', '.join(names)}"
        )
    if name in GUARANTEES:
        return RULES[
            "block" if name == "same-distribution" and draws and not trees else "match"
        ]
    if name in RULES:
        return RULES[name]
    close = get_close_matches(name, names, n=1)
    hint = f"; did you mean {close[0]!r}?" if close else "."
    raise UnknownMethod(
        f"cannot use rule {name!r}: there is no such rule{hint} Choose one of "
        f"{', '.join(names)}"
    )
