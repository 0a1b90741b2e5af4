"""Plain decoding through the same loop: a drafter without draft tokens."""

from collections.abc import Sequence

from foreword.draft.base import Drafter, chosen
from foreword.registry import OWN_METHODS
from foreword.types import Batch, Draft


class NoDrafter(Drafter):
    """Drafter without draft tokens: every round emits the target's one token."""

    about = OWN_METHODS["none"]

    def __init__(self, missing: str | None = None) -> None:
        """`missing`: why another drafter, for which this one stands in, could not be
        loaded; `Request.undrafted` of every request.
        """
        self.missing = missing

    def propose(self, batch: Batch, nodes: Sequence[int]) -> Draft:
        return chosen([[] for _ in nodes])
