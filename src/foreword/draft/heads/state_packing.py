"""The base of heads in torch that read a hidden state of the target beside each token,
then their own states.
"""

from __future__ import annotations

import torch
from jaxtyping import Int
from torch import Tensor, nn

from foreword.draft.heads.hidden_states import HeadStates
from foreword.model import Mode, Model
from foreword.model.executors.torch.packed_linear import MIN_ROWS, swap_in
from foreword.model.executors.torch.packing import Packed, Packing
from foreword.native.openmp import threads_for


class StatePacking(Packing):
    """A head in torch: reads many sequences and keeps its hidden states at each
    sequence's end and draft tokens.
    """

    mode = Mode.TREE

    def __init__(self, head: nn.Module, target: Model) -> None:
        """Pack the linear layers of `head` where that is faster."""
        super().__init__(target.device)
        self.head_states = HeadStates()
        self._threads = threads_for(head)
        swap_in(head)  # after threads_for counted its weights

    def close(self, id: int) -> None:
        super().close(id)
        self.head_states.forget(id)

    def _padded(self, rows: Packed) -> Int[Tensor, "2 padded"]:
        """Return the tokens and positions of a forward, at least `MIN_ROWS`: a single
        row would be summed in another order.
        """
        more = [0] * (MIN_ROWS - len(rows.tokens))
        return torch.tensor(
            [rows.tokens + more, rows.positions + more], device=self._device
        )
