"""Verification rules, which accept draft tokens: a file and a registry line each."""

from foreword.registry import GUARANTEES, RULES
from foreword.verify.base import Follow, Keeps, Rule

__all__ = ["RULES", "Follow", "Keeps", "Rule", "rule"]


def rule(name: str, *, draws: bool = False, trees: bool = True) -> Rule:
    """Return the rule of that name, or, for the name of a guarantee, the fastest rule
    that gives it.

    `draws`: the drafter can sample its draft tokens for a rule that compares
    distributions. `trees`: the target can verify trees. Coupled trees have about as
    many accepted tokens as sampled ones and cost less; for chains, sampled drafts under
    `block` have more (docs/benchmarks/rules.md). Raises UnknownMethod for any other
    name.
    """
    RULES.check(name, *GUARANTEES)
    if name not in GUARANTEES:
        return RULES[name]
    is_chain = name == "same-distribution" and draws and not trees
    return RULES["block" if is_chain else "match"]
