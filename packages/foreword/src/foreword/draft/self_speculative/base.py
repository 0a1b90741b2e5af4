"""Base of self-speculation: a cheaper view of the target drafts, on its KV cache."""

from foreword.draft.lm import LanguageModelDrafter, _Memory
from foreword.draft.tree.drafter import ROOM
from foreword.model import Model, Read
from foreword.types import Batch, Request

SPARE = ROOM
"""Cache positions beyond a text for draft tokens, which the target overwrites."""
FEW = 8
"""Tokens. Most that the target has yet to read; more are a prompt."""


class SelfDrafter(LanguageModelDrafter):
    """Drafter with a view of the target, whose draft tokens attend to the target's own
    keys and values.

    Exact, because the target's forward writes every row after its last committed one
    before attending to it.
    """

    def __init__(self, view: Model, *, shares: bool = True) -> None:
        """Take a `view` of `foreword.model.view`; `shares` = on the target's cache."""
        super().__init__(view)
        self._shares = self.reads_target = shares

    def fit(self, batch: Batch, request: Request, nodes: int) -> int:
        is_read = request.cached > 0 and len(request.pending) <= FEW
        if self._shares and not is_read:
            return 0
        return super().fit(batch, request, nodes)

    def prefill(self, request: Request) -> Read:
        if not self._shares:
            return super().prefill(request)
        # unused: what is read now is overwritten before it is needed
        self._memories[request.id] = _Memory()
        return Read(request.id, request.cached, request.pending)
