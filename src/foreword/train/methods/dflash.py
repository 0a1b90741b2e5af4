"""Training of a DFlash head (arXiv 2602.06036); the block task itself is in masked.py
and ahead.py.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import torch
from jaxtyping import Float, Int
from torch import Tensor

from foreword.draft.heads.dflash import DFlashHead
from foreword.model.executors.torch.hooks import apply_lm_head
from foreword.model.loading.checkpoint import Checkpoint
from foreword.train.methods.masked import MaskedBlockTask, begin_as, mask_of, new_layout
from foreword.train.task import TrainContext

if TYPE_CHECKING:
    from foreword.train.registry import DFlashOptions


class DFlashTask(MaskedBlockTask):
    """Task of a head that predicts every token of a block independently of
    the others.
    """

    def __init__(self, context: TrainContext, options: DFlashOptions) -> None:
        self._head = _head(context, options)
        super().__init__(
            context, self._head, anchors=options.anchors, decay=options.decay
        )

    def distributions(
        self,
        hidden: Float[Tensor, "valid hidden"],
        before: Int[Tensor, "valid"],
        depth: Int[Tensor, "valid"],
    ) -> Float[Tensor, "valid vocab"]:
        del before, depth
        return apply_lm_head(self.target, hidden)

    def save(self, folder: Path) -> None:
        self._head.dump(self.target.dtype).write(folder)


def _head(context: TrainContext, options: DFlashOptions) -> DFlashHead:
    if options.draft is not None:
        return DFlashHead.read(Checkpoint.read(options.draft)).float()
    mask = mask_of(context) if options.mask is None else options.mask
    layout = new_layout(
        context.target,
        layers=options.layers,
        block=options.block,
        mask=mask,
        sample_from_anchor=False,
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(context.seed)
        head = DFlashHead(layout)
    begin_as(head, context.target)
    return head
