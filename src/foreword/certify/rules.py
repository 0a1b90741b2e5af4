"""Every rule that keeps the distribution, enumerated over small vocabularies."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch

from foreword.certify.enumeration import bias
from foreword.certify.report import Check
from foreword.certify.worlds import Drafting, World, chosen, drawn, drawn_tree
from foreword.registry import RULES
from foreword.verify import Rule

EXACT = 1e-9
"""Total variation. The precision of the search for thresholds."""
VOCAB, DEPTH = 3, 2
"""Tokens of the vocabulary, and of the longest draft path."""


def check_rule(name: str, seed: int) -> Check:
    """Return whether a rule writes what the target would have written, exactly."""
    rule = RULES[name]
    world = World.random(seed, VOCAB, DEPTH)
    with _one_thread():
        found = {
            kind: bias(rule.verify, drafting, world, rule.shares_noise)
            for kind, drafting in _draftings(rule).items()
        }
    worst = max(found.values())
    size = "below 1e-9" if worst < EXACT else f"{worst:.2g}"
    return Check(
        f"exact distribution: rule {name}",
        "passed" if worst < EXACT else "failed",
        f"total variation {size}, over all drafts and all noise",
        {"total variation": found, "vocabulary": VOCAB, "depth": DEPTH},
    )


@contextmanager
def _one_thread() -> Iterator[None]:
    """Run torch on one thread: for such small tensors, more of them only wait."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def _draftings(rule: Rule) -> dict[str, Drafting]:
    """Return the kinds of drafts that the rule may be given, by name."""
    found: dict[str, Drafting] = {"sampled chain": drawn, "chosen chain": chosen}
    if rule.trees and not rule.shares_noise:
        distinct = rule.lists == "distinct"
        found["sampled tree"] = drawn_tree(2, 1, distinct=distinct)
    return found
