"""The base of heads in torch that read a hidden state beside each token."""

from abc import abstractmethod
from collections.abc import Sequence
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn
from torch.nn import functional

from foreword.draft.heads.reader import HeadExecutor, HeadOutput
from foreword.model import Model, Read
from foreword.model.executors.cuda.backend import BUCKETS, FixedPlan
from foreword.model.executors.cuda.chain import ChainShape, GrowsChains
from foreword.model.executors.cuda.launch import (
    KEPT,
    PLACE,
    POSITION,
    TOKEN,
    tiled,
)
from foreword.model.executors.cuda.table import columns
from foreword.model.executors.torch.kv_pool import KVPool
from foreword.model.executors.torch.packed_linear import MIN_ROWS, swap_in
from foreword.model.executors.torch.packing import Packed, Packing
from foreword.model.executors.torch.plan import Plan
from foreword.model.kv.prefixes import PAGE
from foreword.native.openmp import threads_for
from foreword.types.growth import GrownTree, TreeRequest


class TorchHead(GrowsChains, Packing, HeadExecutor):
    """A head in torch for many sequences; the reference of `NativeHead`.

    Beside a target whose forwards are recorded, chains of draft tokens are too.
    """

    def __init__(
        self, head: nn.Module, target: Model, sizes: Any, window: int | None = None
    ) -> None:
        """Pack the linear layers of `head` where that is faster.

        `sizes`: the config of its layers; `window`: their sliding window.
        """
        recorder = getattr(target.backend, "recorder", None)
        pool = KVPool(adjacent=recorder is not None)
        super().__init__(target.device, pool=pool)
        self._target = target
        self._threads = threads_for(head)
        swap_in(head)  # after threads_for counted its weights
        if recorder is not None:
            heads = sizes.num_attention_heads
            kv_heads = getattr(sizes, "num_key_value_heads", None) or heads
            shape = BUCKETS, tiled(heads, kv_heads), columns([window])
            self.record_chains(recorder, *shape, self.pool.reserve() * PAGE)

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

    def grow_beside(
        self, read: Read, states: Tensor, ask: TreeRequest
    ) -> GrownTree | None:
        return self.grow_chain(read, ask, states)

    def _step(
        self, shape: ChainShape, table: Int[Tensor, "rows width"], states: list[Tensor]
    ) -> tuple[Float[Tensor, "1 vocab"], list[Tensor]]:
        sizes = shape.splits, self._tile
        rows = table[:, PLACE].long()
        plan = FixedPlan(self.pool, table, self._words, sizes, rows, {})
        packed = torch.stack([table[:, TOKEN], table[:, POSITION]]).long()
        hidden = self.advance(states[0], packed, plan)
        last = hidden[table[:1, KEPT].long()]
        following = functional.pad(last, (0, 0, 0, len(table) - 1))
        return self.logits(last), [following]

    @abstractmethod
    def advance(
        self,
        states: Float[Tensor, "rows hidden"],
        packed: Int[Tensor, "2 rows"],
        plan: Plan | FixedPlan,
    ) -> Float[Tensor, "rows hidden"]:
        """Return the head's state at each token, given what it reads beside them."""

    @abstractmethod
    def logits(
        self, hidden: Float[Tensor, "rows hidden"]
    ) -> Float[Tensor, "rows vocab"]:
        """Return logits over the target's vocabulary."""
