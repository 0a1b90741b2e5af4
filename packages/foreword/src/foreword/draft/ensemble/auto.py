"""Several methods; the engine uses the one that takes the least time."""

from collections.abc import Sequence

from foreword.draft.ensemble.joint import JointDrafter
from foreword.registry import OWN_METHODS
from foreword.types import Batch, Draft


class AutoDrafter(JointDrafter):
    """Methods among which the engine chooses (engine/choosing.py), as in HedgeSpec
    (arXiv 2510.20064), with time per token as the loss.

    Outside an engine it drafts with the first member that has draft tokens.
    """

    about = OWN_METHODS["auto"]
    fewest = 1  # plain decoding is the other choice

    def propose(self, batch: Batch, nodes: Sequence[int]) -> Draft:
        return self._first_nonempty(batch, nodes)
