"""Trains a DSpark head (arXiv 2607.05147): laws that know the token before, and how likely they are to be kept.

Knows options, checkpoints and the head's extra parts; how blocks are learnt is in masked.py and anchors.py.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor, nn

from foreword.draft.dspark import DSparkHead
from foreword.errors import InvalidRequest
from foreword.model.checkpoint import Checkpoint
from foreword.model.listen import spoken
from foreword.train.anchors import Said
from foreword.train.losses import compare, overlap
from foreword.train.masked import Filling, begin_as, mask_of, new_layout
from foreword.train.pupil import Setting

if TYPE_CHECKING:
    from foreword.train.students import DSparkStudent


class DSparkTask(Filling):
    """Beside the laws, a part learns how far they are right: 1 - TV is what it should say, in log loss."""

    def __init__(self, setting: Setting, student: DSparkStudent) -> None:
        self._made = _head(setting, student)
        super().__init__(setting, self._made, anchors=student.anchors, decay=student.decay)

    def laws(
        self, hidden: Float[Tensor, "valid hidden"], before: Int[Tensor, "valid"], depth: Int[Tensor, "valid"]
    ) -> Float[Tensor, "valid vocab"]:
        del depth
        return spoken(self.target, hidden).float() + self._made.markov_head(before)

    def losses(self, said: Said) -> Float[Tensor, "valid"]:
        promised = self._made.confidence(said.hidden, said.before)
        if promised is None:
            return super().losses(said)
        kept = compare(overlap, said.target, said.draft.detach()).clamp(0, 1)
        return super().losses(said) + F.binary_cross_entropy_with_logits(promised.float(), kept, reduction="none")

    def figures(self, said: Said) -> dict[str, Float[Tensor, ""]]:
        """How far what is promised is from what is kept, and by how much it is too high."""
        promised = self._made.confidence(said.hidden, said.before)
        if promised is None:
            return super().figures(said)
        wrong = promised.float().sigmoid() - compare(overlap, said.target, said.draft)
        return super().figures(said) | {"promise_error": wrong.abs().mean(), "promise_bias": wrong.mean()}

    def save(self, folder: Path) -> None:
        self._made.dump(self.target.dtype).write(folder)


def _head(setting: Setting, student: DSparkStudent) -> DSparkHead:
    if student.draft is not None:
        return DSparkHead.read(Checkpoint.read(student.draft)).float()
    mask = mask_of(setting) if student.mask is None else student.mask
    if student.rank < 1:
        raise InvalidRequest(f"rank must be 1 or more, got {student.rank}")
    layout = new_layout(setting.target, layers=student.layers, block=student.block, mask=mask, anchored=True)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(setting.seed)
        head = DSparkHead(layout, student.rank)
        nn.init.normal_(head.markov_head.markov_w1.weight, std=student.rank**-0.5)
        nn.init.zeros_(head.markov_head.markov_w2.weight)  # the token before says nothing yet
    begin_as(head, setting.target)
    return head
