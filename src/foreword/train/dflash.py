"""Trains a DFlash head (arXiv 2602.06036): the laws of a block's tokens, after anchors all over the answers.

Knows options and checkpoints; how such a head learns is in masked.py and anchors.py.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import torch
from jaxtyping import Float, Int
from torch import Tensor

from foreword.draft.dflash import DFlashHead
from foreword.model.checkpoint import Checkpoint
from foreword.model.listen import spoken
from foreword.train.masked import Filling, begin_as, mask_of, new_layout
from foreword.train.pupil import Setting

if TYPE_CHECKING:
    from foreword.train.students import DFlashStudent


class DFlashTask(Filling):
    """A head that guesses every token of a block as if it knew none of the others."""

    def __init__(self, setting: Setting, student: DFlashStudent) -> None:
        self._made = _head(setting, student)
        super().__init__(setting, self._made, anchors=student.anchors, decay=student.decay)

    def laws(
        self, hidden: Float[Tensor, "valid hidden"], before: Int[Tensor, "valid"], depth: Int[Tensor, "valid"]
    ) -> Float[Tensor, "valid vocab"]:
        del before, depth
        return spoken(self.target, hidden)

    def save(self, folder: Path) -> None:
        self._made.dump(self.target.dtype).write(folder)


def _head(setting: Setting, student: DFlashStudent) -> DFlashHead:
    if student.draft is not None:
        return DFlashHead.read(Checkpoint.read(student.draft)).float()
    mask = mask_of(setting) if student.mask is None else student.mask
    layout = new_layout(setting.target, layers=student.layers, block=student.block, mask=mask, anchored=False)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(setting.seed)
        head = DFlashHead(layout)
    begin_as(head, setting.target)
    return head
