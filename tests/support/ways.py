"""One tree grown in different ways, to be held side by side. Test code."""

from collections.abc import Callable

import pytest

from foreword.draft.tree.coupled import CoupledTree
from foreword.draft.tree.drafter import ModelDrafter
from foreword.types import Batch, DraftTree, Sequence

Start = Callable[[], tuple[ModelDrafter, Sequence, Batch]]
"""A new drafter that is ready to guess, and for what."""
GrownTree = tuple[DraftTree, CoupledTree]
IN_C, AT_ONCE = (CoupledTree, "at_once"), (ModelDrafter, "_at_once")
"""What must say no for a tree to grow without C from laws that are known, or level by level."""


def grown(start: Start, most: int, patch: pytest.MonkeyPatch, without: tuple[type, str] | None = None) -> GrownTree:
    """A tree of so many guesses, as it grows by itself or without a quicker way."""
    with patch.context() as inside:
        if without is not None:
            inside.setattr(*without, lambda *_: False)
        drafter, one, batch = start()
        return drafter.propose(batch, [most]).trees[0], drafter._coupled[one.id]


def check_same(found: GrownTree, wanted: GrownTree) -> None:
    """The same guesses, and the same to learn from."""
    (ours, quick), (theirs, slow) = found, wanted
    assert (ours.tokens, ours.parents) == (theirs.tokens, theirs.parents)
    assert ours.probabilities == pytest.approx(theirs.probabilities, rel=1e-4, abs=1e-6)
    assert (quick.expanded.tokens, quick.expanded.parents) == (slow.expanded.tokens, slow.expanded.parents)
    for (tokens, values), (right, true) in zip(quick.children, slow.children, strict=True):
        assert tokens == right
        assert values == pytest.approx(true, rel=1e-4, abs=1e-4)
