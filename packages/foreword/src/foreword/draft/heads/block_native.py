"""Draft trees from a block in one C call (csrc/tree.c); reference: CoupledTree."""

from collections.abc import Sequence
from ctypes import addressof, c_int64

import torch
from jaxtyping import Float
from torch import Tensor

from foreword.model import Model
from foreword.model.executors.native.executor import SHARE
from foreword.model.executors.native.layout import room
from foreword.native import forward
from foreword.native.huge_pages import Pages
from foreword.native.openmp import threads
from foreword.native.tree import NativeTreeGrower
from foreword.native.workspace import Workspace, multiplied
from foreword.types.growth import GrownTree, TreeRequest


def supports_native_trees(target: Model) -> bool:
    """Return whether C can grow trees next to this target."""
    return target.device.type == "cpu" and forward.reason() is None


class NativeBlockTrees:
    """Grower of trees from one distribution per depth, plus a low-rank bigram table if
    there is one.
    """

    def __init__(
        self,
        vocab: int,
        table: tuple[Tensor, Tensor] | None = None,
    ) -> None:
        """`table`: the bigram table's factors for the previous and the next token,
        bfloat16, both [vocab, rank].
        """
        self._library, self._held = forward.needed(), table
        self._model = forward.Model(vocab=vocab)
        if table is not None:
            before, after = (half.detach().contiguous() for half in table)
            packed = Pages().empty((room(vocab), after.shape[1]), after.dtype)
            self._library.foreword_pack(
                after.data_ptr(), packed.data_ptr(), *after.shape
            )
            self._held = before, packed
            self._model.hidden = after.shape[1]
            self._model.embedding = before.data_ptr()
            self._model.head = packed.data_ptr()
        self._scratch = Workspace(self._model)
        self._grower = NativeTreeGrower(self._library, self._model)
        self._no_spans, self._first = (forward.Span * 1)(), (c_int64 * 1)()

    def logits(self, tokens: Sequence[int]) -> Float[Tensor, "rows vocab"]:
        """Return the table's logits after these tokens."""
        assert self._held is not None
        before = self._held[0][torch.tensor(tokens)]
        return multiplied(
            self._library, self._model, self._scratch, before, self._threads
        )

    @property
    def _threads(self) -> int:
        """Number of threads; each reads at least a few megabytes of the table."""
        return max(
            1,
            min(threads(), 0 if self._held is None else self._held[1].nbytes // SHARE),
        )

    def grow(
        self,
        distributions: Float[Tensor, "deep vocab"],
        last: int,
        ask: TreeRequest,
    ) -> GrownTree:
        """Grow a tree after a sequence that ends with token `last`."""
        distributions, token = distributions.float().contiguous(), (c_int64 * 1)(last)
        logits = self._grower.room(ask.width)
        scratch = self._scratch.fit(ask.width, self._threads, 1)
        pointers = addressof(token), addressof(self._first), addressof(self._first)
        row = forward.Forward(
            1, 1, 1, *pointers, self._no_spans, logits.data_ptr(), *scratch
        )
        return self._grower.grow(
            row, ask, ask.reads, self._threads, distributions=distributions
        )
