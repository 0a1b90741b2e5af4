"""The base of heads in torch that read a hidden state beside each token."""

from abc import abstractmethod
from collections.abc import Sequence

import torch
from jaxtyping import Int
from torch import Tensor, nn

from foreword.draft.heads.reader import HeadExecutor, HeadOutput
from foreword.model import Model, Read
from foreword.model.executors.torch.packed_linear import MIN_ROWS, swap_in
from foreword.model.executors.torch.packing import Packed, Packing
from foreword.native.openmp import threads_for


class TorchHead(Packing, HeadExecutor):
    """A head in torch for many sequences; the reference of `NativeHead`."""

    def __init__(self, head: nn.Module, target: Model) -> None:
        """Pack the linear layers of `head` where that is faster."""
        super().__init__(target.device)
        self._target = target
        self._threads = threads_for(head)
        swap_in(head)  # after threads_for counted its weights

    @torch.inference_mode()
    def run(self, reads: Sequence[Read], states: Sequence[Tensor]) -> HeadOutput:
        with self._threads():
            rows = self._pack(reads)
            more = [0] * (MIN_ROWS - len(rows.tokens))
            packed = torch.tensor(
                [rows.tokens + more, rows.positions + more], device=self._device
            )
            return self.compute(reads, states, rows, packed)

    @abstractmethod
    def compute(
        self,
        reads: Sequence[Read],
        states: Sequence[Tensor],
        rows: Packed,
        packed: Int[Tensor, "2 padded"],
    ) -> HeadOutput:
        """Return what `run` returns.

        `packed`: tokens and positions, at least `MIN_ROWS`: a single row would be
        summed in another order.
        """
