"""One tree grown in different ways, to be held side by side. Test code."""

from collections.abc import Callable

import pytest

from foreword.draft.growing import GrowingDrafter
from foreword.draft.tree import Growth
from foreword.types import Batch, Sequence, Tree

Start = Callable[[], tuple[GrowingDrafter, Sequence, Batch]]
"""A new drafter that is ready to guess, and for what."""
Grown = tuple[Tree, Growth]
IN_C, AT_ONCE = (Growth, "at_once"), (GrowingDrafter, "_at_once")
"""What must say no for a tree to grow without C from laws that are known, or level by level."""


def grown(start: Start, most: int, patch: pytest.MonkeyPatch, without: tuple[type, str] | None = None) -> Grown:
    """A tree of so many guesses, as it grows by itself or without a quicker way."""
    with patch.context() as inside:
        if without is not None:
            inside.setattr(*without, lambda *_: False)
        drafter, one, batch = start()
        return drafter.propose(batch, [most]).trees[0], drafter._growths[one.id]


def check_same(found: Grown, wanted: Grown) -> None:
    """The same guesses, and the same to learn from."""
    (ours, quick), (theirs, slow) = found, wanted
    assert (ours.tokens, ours.parents) == (theirs.tokens, theirs.parents)
    assert ours.chances == pytest.approx(theirs.chances, rel=1e-4, abs=1e-6)
    assert (quick.known.tokens, quick.known.parents) == (slow.known.tokens, slow.known.parents)
    for (tokens, values), (right, true) in zip(quick.children, slow.children, strict=True):
        assert tokens == right
        assert values == pytest.approx(true, rel=1e-4, abs=1e-4)
