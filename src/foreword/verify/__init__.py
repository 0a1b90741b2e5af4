"""The third step, decide: which guesses stay. One file per rule, one registry line per rule.

Knows the names of the rules and what each of them keeps; knows nothing about models, drafters or sequences.
"""

from __future__ import annotations

from collections.abc import Callable
from collections.abc import Sequence as List
from dataclasses import dataclass
from difflib import get_close_matches
from typing import Literal, get_args

from foreword.errors import InvalidRequest, UnknownMethod
from foreword.types import Lists, Tree, Verify
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

Follow = Callable[[List[int], Tree], tuple[list[int], int]]
"""From the target's own token of each column of a sequence: which guesses stay, and the token after them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Rule:
    """A way to decide, and what its user may rely on."""

    name: str
    verify: Verify
    shares_noise: bool
    """The drafter may guess with the Gumbel noise the rule decides with. Any other rule is biased by that."""
    lists: Lists
    """How several guesses after one text must be drawn, for a drafter that draws; "one" judges chains only."""
    follow: Follow | None = None
    """What is left of the rule once the target's own token of each column is drawn, where the rule is of that kind."""
    keeps: Keeps
    """What equals plain decoding with the same seed: every token, or only the law that the tokens are drawn from."""

    @property
    def trees(self) -> bool:
        """Judges trees; otherwise chains only."""
        return self.lists != "one"


def _same_distribution(name: str, verify: Verify, lists: Lists) -> Rule:
    return Rule(name=name, verify=verify, shares_noise=False, lists=lists, keeps="same-distribution")


RULES: dict[str, Rule] = {
    "match": Rule(name="match", verify=match, follow=follow, shares_noise=True, lists="distinct", keeps="same-text"),
    "rejection": _same_distribution("rejection", rejection, "one"),
    "block": _same_distribution("block", block, "one"),
    "without-replacement": _same_distribution("without-replacement", without_replacement, "distinct"),
    "traversal": _same_distribution("traversal", traversal, "distinct"),
    "specinfer": _same_distribution("specinfer", specinfer, "independent"),
    "kseq": _same_distribution("kseq", kseq, "independent"),
}


GUARANTEES: tuple[Keeps, ...] = get_args(Keeps)


def rule(name: str, *, draws: bool = False, trees: bool = True) -> Rule:
    """The rule of that name, or, where a guarantee is named, the one that writes most per second and gives it.

    `draws`: the drafter draws its guesses where a rule compares laws; `trees`: the target can judge them in trees. By
    docs/rules.md coupled trees keep about as much as drawn ones and are cheaper to grow and to judge; where only chains
    can be judged, drawn ones keep more, under `block`. Raises UnknownMethod, with the names there are, for other names.
    """
    names = (*RULES, *GUARANTEES)
    if not isinstance(name, str):
        raise InvalidRequest(f"cannot use rule={name!r}: it is no name. Choose one of {', '.join(names)}")
    if name in GUARANTEES:
        return RULES["block" if name == "same-distribution" and draws and not trees else "match"]
    if name in RULES:
        return RULES[name]
    close = get_close_matches(name, names, n=1)
    hint = f"did you mean {close[0]!r}? " if close else ""
    raise UnknownMethod(f"there is no verification rule {name!r}; {hint}choose one of {', '.join(names)}")
